"""Settings of ClusterEnv's environments (``env_config``)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from headrace.actors.weight_sync import SyncRule, sync_rule
from headrace.envs.names import resolve
from headrace.errors import ConfigError, nearest
from headrace.validation import ranges
from headrace.validation.fields import check, check_fields, settings

TYPE = ranges.Constraint("a string or a callable that returns an environment", bool, whole=True)


@settings()
@dataclass(frozen=True)
class EnvConfig:
    """Environments, their number per worker, and the weight synchronisation rule."""

    type: Annotated[str | Callable[..., Any], TYPE] = "gymnasium"
    """``"gymnasium"``; or a callable that returns an environment (also an Env or VectorEnv class),
    or its import path, as in ``"my_package.my_module:make_env"``."""
    env_name: str | None = None
    """Environment id, with type "gymnasium"."""
    envs_per_node: Annotated[int, ranges.SIZE] = 64
    """Number of environments per worker."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of each environment."""
    seed: Annotated[int | None, ranges.SEED] = None
    """Seed of a first reset without one, and of replacement workers."""
    weight_sync: str = "adaptive"
    """Rule for fetching weights: "adaptive" (on drift), "every" version or "every-<k>"."""
    kl_threshold: Annotated[float, ranges.NATS] = 0.005
    """Threshold of "adaptive" in nats: weights are fetched if the mean KL(worker's copy || agent)
    is above. A clipped objective keeps the KL below about clip², so higher thresholds never fetch.
    """
    max_policy_lag: Annotated[int | None, ranges.VERSIONS] = 100
    """Number of versions behind at which weights are fetched regardless of drift; None: never."""
    runs_ahead: bool = False
    """Let workers begin the next step of ``step(agent)`` before it is requested, while the head is
    busy. Weights, and another agent, then arrive a step later, except after a reset. Not available
    with step(actions), collect, collect_async and resets of some environments. A reset of all
    environments discards that step, which sync_info counts."""
    engine: Literal["auto", "native", "envpool", "sync", "async", "threads"] = "sync"
    """Engine of a worker's environments (see ``headrace.make_vec``); "sync" reproduces the
    trajectories of Gymnasium's SyncVectorEnv, "auto" is the fastest available."""

    def __post_init__(self) -> None:
        check_fields(self, "env_config: ")
        if self.type == "gymnasium" and not self.env_name:
            raise ConfigError('env_config: type="gymnasium" needs env_name, as in "CartPole-v1"')
        _ = self.rule, self.target  # raise errors on construction

    @property
    def rule(self) -> SyncRule:
        """Weight synchronisation rule."""
        return sync_rule(self.weight_sync, self.kl_threshold, self.max_policy_lag)

    @property
    def target(self) -> Any:
        """Environment in the form of ``headrace.make_vec``."""
        return resolve(self.env_name if self.type == "gymnasium" else self.type)


def as_env_config(values: dict[str, Any] | EnvConfig) -> EnvConfig:
    """Parse the settings in a dict.

    Raises:
        ConfigError: a key is unknown, or a value invalid.
    """
    if isinstance(values, EnvConfig):
        return values
    check("env_config", dict[str, Any], values)
    valid = [f.name for f in dataclasses.fields(EnvConfig)]
    for key in values:
        if key not in valid:
            hint = nearest(str(key), valid) or f" Valid settings: {', '.join(valid)}."
            raise ConfigError(f"env_config: unknown setting {key!r}.{hint}")
    return EnvConfig(**values)

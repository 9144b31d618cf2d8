"""What ``ClusterEnv`` takes as ``env_config``."""

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
    """Which environments, how many on each worker, and when their agent's weights are fetched."""

    type: Annotated[str | Callable[..., Any], TYPE] = "gymnasium"
    """``"gymnasium"``; or a callable that returns an environment (an Env or VectorEnv class too),
    or its import path, as in ``"my_package.my_module:make_env"``."""
    env_name: str | None = None
    """With type "gymnasium", the environment's id."""
    envs_per_node: Annotated[int, ranges.SIZE] = 64
    """Environments of each worker."""
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of each environment."""
    seed: Annotated[int | None, ranges.SEED] = None
    """Of the first reset that is given none, and of what replaces a dead worker."""
    weight_sync: str = "adaptive"
    """When a worker fetches weights: "adaptive" (on drift), "every" version or "every-<k>"."""
    kl_threshold: Annotated[float, ranges.NATS] = 0.005
    """With "adaptive": the mean KL(worker's copy || agent) in nats above which it does. A clipped
    objective keeps the KL below about clip²: with a threshold above that nothing is fetched."""
    max_policy_lag: Annotated[int | None, ranges.VERSIONS] = 100
    """Versions behind at which it does so whatever the drift; None: never."""
    runs_ahead: bool = False
    """Let workers begin the next step of ``step(agent)`` before they are asked for it, while the
    head is busy. Weights, and another agent, then arrive a step later, except after a reset.
    Forbids what can't know of a step that was begun: step(actions), collect, collect_async, and
    resets of some environments. A reset of all throws that step away, and sync_info counts it."""
    engine: Literal["auto", "native", "envpool", "sync", "async", "threads"] = "sync"
    """How a worker steps its environments (see ``headrace.make_vec``); "sync" has the very
    trajectories of Gymnasium's SyncVectorEnv, "auto" takes the fastest there is."""

    def __post_init__(self) -> None:
        check_fields(self, "env_config: ")
        if self.type == "gymnasium" and not self.env_name:
            raise ConfigError('env_config: type="gymnasium" needs env_name, as in "CartPole-v1"')
        _ = self.rule, self.target  # raise what they have to

    @property
    def rule(self) -> SyncRule:
        """When weights are fetched."""
        return sync_rule(self.weight_sync, self.kl_threshold, self.max_policy_lag)

    @property
    def target(self) -> Any:
        """What makes an environment, as ``headrace.make_vec`` takes it."""
        return resolve(self.env_name if self.type == "gymnasium" else self.type)


def as_env_config(values: dict[str, Any] | EnvConfig) -> EnvConfig:
    """The settings in a dict.

    Raises:
        ConfigError: a key is unknown, or a value illegal.
    """
    if isinstance(values, EnvConfig):
        return values
    check("env_config", dict[str, Any], values)
    known = [f.name for f in dataclasses.fields(EnvConfig)]
    for key in values:
        if key not in known:
            hint = nearest(str(key), known) or f" Known are {', '.join(known)}."
            raise ConfigError(f"env_config: {key!r} is no setting.{hint}")
    return EnvConfig(**values)

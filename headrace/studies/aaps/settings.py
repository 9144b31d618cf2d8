"""What a study of adaptive weight synchronisation depends on."""

# Annotations are evaluated here at once: tyro reads those of Aaps.

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from headrace.cluster.settings import as_env_config
from headrace.errors import require
from headrace.studies.table import Case, fingerprint, grid

THRESHOLDS = (0.001, 0.01, 0.05, 0.1, 0.2, 0.5, 0.8, 1.0)


@dataclass(frozen=True)
class Aaps:
    """Compare divergence thresholds of adaptive weight synchronisation on one environment."""

    env_id: str = "LunarLander-v3"
    """Gymnasium id of an environment with Box observations and Discrete actions."""
    kl_thresholds: tuple[float, ...] = THRESHOLDS
    """Nats of mean KL(worker's copy || learner) above which a worker fetches weights."""
    max_policy_lag: int | None = None
    """Versions behind at which a worker fetches weights whatever the drift; None: never."""
    fixed_intervals: bool = True
    """Also fetch at fixed intervals that spend as many bytes as each threshold did."""
    repeats: int = 3
    """Runs of each setting, with the seeds --seed, --seed + 1 …"""
    seed: int = 0
    """Of the first repeat."""
    nodes: int = 2
    """Workers."""
    envs_per_node: int = 32
    """Environments of each worker."""
    num_steps: int = 64
    """Steps of each environment per rollout; one update of the learner follows each rollout."""
    total_steps: int = 1_000_000
    """Environment steps of each run, rounded up to whole rollouts."""
    epochs: int = 4
    """Passes over each rollout."""
    minibatches: int = 8
    """Parts of each pass."""
    learning_rate: float = 1e-3
    """At the start; it falls to 0 linearly."""
    gamma: float = 0.999
    """Discount."""
    lam: float = 0.98
    """Of generalised advantage estimation."""
    entropy_coef: float = 0.01
    """Weight of the entropy."""
    reward_scale: float = 0.05
    """What rewards are multiplied by."""
    engine: str = "auto"
    """How workers step their environments."""
    eval_episodes: int = 50
    """Episodes of the evaluation at the end of each run."""
    output: str = "runs/aaps"
    """Folder for the table, the pictures and the runs."""
    timeout_s: float = 36_000.0
    """A run that takes longer is ended and counts as failed."""

    def __post_init__(self) -> None:
        thresholds = self.kl_thresholds
        require(bool(thresholds), "kl_thresholds", thresholds, "one or more")
        require(len(set(thresholds)) == len(thresholds), "kl_thresholds", thresholds, "different")
        for name in ("repeats", "nodes", "num_steps", "total_steps", "eval_episodes"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        for threshold in thresholds:  # raises what a ClusterEnv would
            as_env_config(
                {
                    "env_name": self.env_id,
                    "envs_per_node": self.envs_per_node,
                    "kl_threshold": threshold,
                    "max_policy_lag": self.max_policy_lag,
                    "seed": self.seed,
                }
            )

    @property
    def iterations(self) -> int:
        """Rollouts, and updates, of each run."""
        return -(-self.total_steps // (self.nodes * self.envs_per_node * self.num_steps))

    @property
    def fingerprint(self) -> str:
        """Of everything that a run depends on besides its case."""
        values = dataclasses.asdict(self)
        for name in ("kl_thresholds", "fixed_intervals", "repeats", "seed", "output", "timeout_s"):
            del values[name]
        return fingerprint(values)


PRESETS = {
    "machine": Aaps(),
    "paper": Aaps(  # ClusterEnv, section IV-A
        nodes=4,
        envs_per_node=64,
        num_steps=1024,
        total_steps=5_000_000,
        epochs=30,
        learning_rate=5e-4,
        gamma=0.99,
        lam=0.95,
        reward_scale=1.0,
    ),
}


def cases_of(aaps: Aaps, kinds: Sequence[tuple[str, float]]) -> list[Case]:
    """Runs of these (weight_sync, kl_threshold), seeds outermost."""
    settings, seeds = {"settings": aaps.fingerprint}, range(aaps.seed, aaps.seed + aaps.repeats)
    return [
        {"weight_sync": sync, "kl_threshold": threshold, **case}
        for case in grid(settings, seed=seeds)
        for sync, threshold in kinds
    ]

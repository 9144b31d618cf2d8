"""Inputs and results of a simulation."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from headrace.actors.weight_sync import SyncRule
from headrace.errors import require
from headrace.studies.plan.durations import Duration
from headrace.studies.plan.sharing import Cores


@dataclass(frozen=True)
class Scenario:
    """Inputs of a simulation: one learner and its actors.

    Raises:
        ConfigError: a number is out of range.
    """

    num_actors: int
    acting: Duration  # seconds of one rollout, alone on a core
    update: Duration  # seconds of an update and its publication, alone
    slots_per_actor: int
    rollouts_per_update: int
    synchronous: bool = False
    steps_per_rollout: float = 1.0
    sync: SyncRule = field(default_factory=SyncRule)
    num_credits: int | None = None  # rollouts started or waiting at a time; None: number of slots
    drift: float = 0.0  # nats of KL(behaviour || learner) per update of lag, for adaptive fetching
    max_policy_lag: int | None = None  # maximum lag in updates; older rollouts are dropped
    pull_s: float = 0.0  # seconds for copying weights
    cores: Cores = field(default_factory=lambda: Cores(math.inf, 1.0, 1.0))
    stragglers: int = 0  # actors that are slower
    straggler_factor: float = 1.0  # slowdown of these
    mtbf_s: float | None = None  # mean seconds of acting between two crashes of an actor
    restart_s: float = 0.0  # seconds until it acts again; the rollout in progress is lost
    rollout_bytes: float = 0.0
    weights_bytes: float = 0.0
    bytes_per_s: float | None = None  # shared by all transfers; None: they take no time
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("num_actors", "slots_per_actor", "rollouts_per_update"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        valid = f"between 0 and num_actors={self.num_actors}"
        require(0 <= self.stragglers <= self.num_actors, "stragglers", self.stragglers, valid)
        require(self.straggler_factor > 0, "straggler_factor", self.straggler_factor, "above 0")
        for name in ("mtbf_s", "bytes_per_s"):
            value = getattr(self, name)
            require(value is None or value > 0, name, value, "above 0, or None")
        for name in ("pull_s", "restart_s", "drift", "rollout_bytes", "weights_bytes"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more (nearest: 0)")
        slots, batch = self.num_actors * self.slots_per_actor, self.rollouts_per_update
        if self.num_credits is not None:
            slots = min(slots, self.num_credits)
        valid = f"at most {slots}, the slots of all actors"
        require(batch <= slots, "rollouts_per_update", batch, valid)
        valid = f"{slots}, all slots of all actors, if actors and learner alternate"
        require(not self.synchronous or batch == slots, "rollouts_per_update", batch, valid)


@dataclass
class Outcome:
    """Results of a simulation. Metrics exclude a warm-up, counts of rollouts include it."""

    sps: float = 0.0  # steps per second
    updates_per_s: float = 0.0
    utilisation_learner: float = 0.0
    utilisation_actors: float = 0.0  # acting / (acting + waiting for slots), as headrace reports it
    lags: Counter[int] = field(default_factory=Counter)  # rollouts by updates behind
    depths: dict[int, float] = field(default_factory=dict)  # seconds by rollouts waiting
    depth_line: list[tuple[float, int]] = field(default_factory=list)  # (second, rollouts waiting)
    simulated_s: float = 0.0
    updates: int = 0
    pulls: int = 0
    crashes: int = 0
    committed: int = 0  # rollouts: = trained + dropped + waiting
    trained: int = 0
    dropped: int = 0
    waiting: int = 0

    @property
    def lag_mean(self) -> float:
        """Mean number of updates between acting and learning; NaN without a rollout."""
        count = sum(self.lags.values())
        return sum(lag * n for lag, n in self.lags.items()) / count if count else math.nan

    @property
    def lag_max(self) -> int:
        """Maximum number of updates between acting and learning."""
        return max(self.lags, default=0)

    @property
    def depth_mean(self) -> float:
        """Mean number of waiting rollouts over time."""
        seconds = sum(self.depths.values())
        return sum(d * s for d, s in self.depths.items()) / seconds if seconds else 0.0

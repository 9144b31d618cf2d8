"""How far a run has come: what its learners count, each the same, and what a checkpoint keeps."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, fields
from typing import Any

from headrace.records.meter import SUMS, Meter
from headrace.records.result import EPISODE_WINDOW, Episodes


@dataclass
class Progress:
    """Counters of a run."""

    env_steps: int = 0  # of all learners
    updates: int = 0
    dropped: int = 0  # rollouts
    pulls: int = 0  # times that actors copied weights before a rollout
    epoch: int = 0  # how often the environments were reset for a checkpoint
    best_return: float | None = None  # greatest training return at a checkpoint
    trained_s: float = 0.0  # seconds of training, evaluations left out
    _since: float = field(default=math.nan, repr=False)

    def start(self) -> None:
        """Training goes on from here."""
        self._since = time.monotonic() - self.trained_s

    def add(self, meter: Meter) -> None:
        """An update is over, in which all learners together counted this."""
        self.updates += 1
        for name in self.state_dict().keys() & set(SUMS):
            setattr(self, name, getattr(self, name) + getattr(meter, name))

    def leave_out(self, seconds: float) -> None:
        """These seconds were no training."""
        self._since += seconds

    def now(self) -> float:
        """Seconds of training so far; also kept in ``trained_s``."""
        self.trained_s = time.monotonic() - self._since
        return self.trained_s

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint holds."""
        names = [f.name for f in fields(self) if not f.name.startswith("_")]
        return {name: getattr(self, name) for name in names}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned; what an older one lacks stays as it is."""
        for name in self.state_dict():
            setattr(self, name, saved.get(name, getattr(self, name)))


def own_episodes(num_learners: int) -> Episodes:
    """What one of several learners remembers: its share of the last 100 episodes, rounded up."""
    return Episodes(-(-EPISODE_WINDOW // num_learners))

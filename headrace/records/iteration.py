"""One learner's part of an update, and the line that is logged of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.records.meter import Meter


@dataclass(frozen=True)
class Iteration:
    """One learner's part of an update: its time in seconds, its sums, the metrics of its data."""

    rank: int
    seconds: float
    meter: Meter
    own: dict[str, float]

    def line(self) -> dict[str, Any]:
        """What is logged of it. ``t_iter`` is measured apart from its four parts."""
        meter = self.meter
        return {
            "rank": self.rank,
            "steps": meter.env_steps,
            "fps": meter.env_steps / self.seconds if self.seconds > 0 else 0.0,
            "t_iter": self.seconds,
            "t_rollout": meter.wait_s,
            "t_learn": meter.learn_s,
            "t_comm": meter.publish_s + meter.comm_s,
            "t_sync": meter.sync_s,
            **self.own,
        }

"""What a run reports of itself while it goes on, and at its end."""

from __future__ import annotations

import time
from typing import Any

from headrace.metrics import Episodes, Meter, Result
from headrace.progress import Progress


class Tally:
    """Sums since the last result and since the start, and the times between.

    Args:
        progress: of the run.
        num_learners: whose sums are added.
        weights_bytes: that an actor copies when it pulls.
        started: when the run counts as started, on the clock of ``time.monotonic()``.
    """

    def __init__(
        self, progress: Progress, num_learners: int, weights_bytes: int, started: float
    ) -> None:
        self._progress, self._num_learners, self._started = progress, num_learners, started
        self._weights_bytes = weights_bytes
        self._meter, self._total = Meter(), Meter()
        self._first_update_s: float | None = None
        self._first_steps = self._last_steps = 0
        self._first_time = self._last_time = started
        self._mean_return: float | None = None

    def begin(self, episodes: Episodes) -> None:
        """Training begins, after these episodes of all learners."""
        self._mean_return = episodes.mean_return
        self._first_time = self._last_time = time.monotonic()
        self._first_steps = self._last_steps = self._progress.env_steps

    def is_due(self, interval_s: float) -> bool:
        """Whether the last result is so long ago."""
        return time.monotonic() - self._last_time >= interval_s

    def add(self, meter: Meter) -> None:
        """Add an update's sums, over all learners."""
        self._meter.add(meter)
        self._total.add(meter)
        if self._first_update_s is None:
            self._first_time, self._first_steps = time.monotonic(), self._progress.env_steps
            self._first_update_s = self._first_time - self._started

    def result(self, episodes: Episodes, **known: Any) -> Result:
        """What happened since the last result.

        Args:
            episodes: of all learners.
            known: fields of the Result that are known elsewhere.
        """
        now, at = time.monotonic(), self._progress
        result = self._meter.result(
            episodes,
            self._num_learners,
            env_steps=at.env_steps,
            updates=at.updates,
            seconds=now - self._started,
            sps=(at.env_steps - self._last_steps) / (now - self._last_time),
            dropped=at.dropped,
            sync_pulls=at.pulls,
            sync_bytes=at.pulls * self._weights_bytes,
            **known,
        )
        self._last_time, self._last_steps, self._meter = now, at.env_steps, Meter()
        self._mean_return = episodes.mean_return
        return result

    @property
    def sps(self) -> float:
        """Environment steps per second from the first update to the latest result."""
        seconds = self._last_time - self._first_time
        return (self._last_steps - self._first_steps) / seconds if seconds > 0 else 0.0

    def summary(self) -> dict[str, Any]:
        """What ``summary.json`` holds of the training."""
        total, at = self._total, self._progress
        return {
            "env_steps": at.env_steps,
            "updates": at.updates,
            "seconds_total": time.monotonic() - self._started,
            "seconds_to_first_update": self._first_update_s,
            "seconds_training": at.trained_s,
            "sps": self.sps,
            "episodic_return": self._mean_return,
            "utilisation": {
                "learner": total.utilisation_learner,
                "actor": total.utilisation_actor,
            },
            "time": total.times(self._num_learners),
            "lag": {"mean": total.lag_mean, "max": total.lag_max},
            "dropped": at.dropped,
            "sync": {
                "pulls": at.pulls,
                "bytes": at.pulls * self._weights_bytes,
                "divergence": total.divergence_mean,
            },
        }

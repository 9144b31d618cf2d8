"""Formats how much of a study is done, and the time left."""

from __future__ import annotations

import shlex
import time
from datetime import timedelta


class Countdown:
    """Estimates the time left of a study from its speed since the start of this process.

    Args:
        total: number of parts, such as trials.
        done: parts that were done before; they don't count for the speed.
    """

    def __init__(self, total: float, done: float = 0.0) -> None:
        self._total, self._before, self._start = total, done, time.monotonic()

    def left_s(self, done: float) -> float | None:
        """Return the seconds left; None while nothing was done since the start."""
        new = done - self._before
        if new <= 0:
            return None
        return (time.monotonic() - self._start) / new * max(0.0, self._total - done)

    def text(self, done: float, shown: str | None = None) -> str:
        """Format the parts that are done and the time left, as in ``[3/8, 0:02:10 left]``.

        Args:
            shown: text instead of "3/8".
        """
        parts = [f"{done:g}/{self._total:g}" if shown is None else shown]
        seconds = self.left_s(done)
        if seconds is not None and done < self._total:
            parts.append(f"{timedelta(seconds=round(seconds))} left")
        return f"[{', '.join(parts)}]"


def continue_line(run_dir: str, total_steps: int) -> str:
    """Return the command that trains a run for as many steps again."""
    return f"headrace resume {shlex.quote(run_dir)} --total-steps {2 * total_steps:_}"

"""CPU time of a process and its descendants."""

from __future__ import annotations

import contextlib
import time

import psutil


class Processor:
    """CPU seconds of a process and all its descendants, including finished ones.

    CPU time depends less on other programs than wall-clock time. The time between the last
    measurement of a process and its end is missing.

    Args:
        interval_s: seconds between measurements.
    """

    def __init__(self, interval_s: float) -> None:
        self.points: list[tuple[float, float]] = []  # wall-clock and CPU seconds
        self._interval_s, self._began = interval_s, 0.0
        self._seconds: dict[tuple[int, float], float] = {}

    def __call__(self, pid: int) -> None:
        """Measure the process tree of ``pid`` if the interval has passed."""
        now = time.monotonic()
        if not self.points:
            self._began = now
        elif now - self._began < self.points[-1][0] + self._interval_s:
            return
        for process in tree_of(pid):
            with contextlib.suppress(psutil.Error), process.oneshot():
                of, times = (process.pid, process.create_time()), process.cpu_times()
                self._seconds[of] = times.user + times.system
        self.points.append((now - self._began, sum(self._seconds.values())))


def tree_of(pid: int) -> list[psutil.Process]:
    """Return a process and all its descendants; none if it has ended."""
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []

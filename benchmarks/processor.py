"""What a program and all that it starts take of the processors."""

from __future__ import annotations

import contextlib
import time

import psutil


class Processor:
    """Processor seconds of a process and all its descendants, which ended ones keep.

    Beside other programs they say more than the clock. What a process takes between the last look
    at it and its end is missing.

    Args:
        interval_s: between two looks.
    """

    def __init__(self, interval_s: float) -> None:
        self.points: list[tuple[float, float]] = []  # seconds since the first look, and these
        self._interval_s, self._began = interval_s, 0.0
        self._seconds: dict[tuple[int, float], float] = {}

    def __call__(self, pid: int) -> None:
        """Look at the tree of ``pid``, if it is time to."""
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
    """A process and all its descendants; none where it is gone."""
    try:
        return [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []

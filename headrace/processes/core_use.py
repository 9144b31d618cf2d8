"""Measures how many cores this process tree and other programs use."""

from __future__ import annotations

import contextlib
import os
import time
from typing import NamedTuple

import psutil

from headrace.processes.hardware import cores


class CoreUse(NamedTuple):
    """Mean number of cores in use over a period, of the cores that this process may use."""

    own: float  # by this process and its descendants
    other: float  # by other programs
    idle: float
    process: float = 0.0  # part of ``own`` used by this process, without its descendants


class CoreMeter:
    """Measures the use of cores from one call to the next."""

    def __init__(self) -> None:
        self._before = _seconds()

    def measure(self, restart: bool = True) -> CoreUse | None:
        """Return the use since the last call; None if the system doesn't report it.

        Args:
            restart: False: the next call also counts from then.
        """
        before, now = self._before, _seconds()
        if restart:
            self._before = now
        if before is None or now is None or now[0] <= before[0]:
            return None
        passed, busy, idle, own, process = (x - y for x, y in zip(now, before, strict=True))
        own = max(0.0, own)  # the time of killed descendants may be lost
        used = own, max(0.0, busy - own), idle, min(process, own)
        return CoreUse(*(seconds / passed for seconds in used))


def _seconds() -> tuple[float, ...] | None:
    """Return the time, and seconds of busy cores, idle cores, this process tree and process."""
    with contextlib.suppress(OSError, psutil.Error, AttributeError, NotImplementedError):
        usable, busy, idle = cores(), 0.0, 0.0
        for number, times in enumerate(psutil.cpu_times(percpu=True)):
            if number in usable:
                unused = times.idle + getattr(times, "iowait", 0.0)
                guests = getattr(times, "guest", 0.0) + getattr(times, "guest_nice", 0.0)
                busy, idle = busy + sum(times) - guests - unused, idle + unused
        return time.monotonic(), busy, idle, _own_seconds(), _process_seconds()
    return None


def _process_seconds() -> float:
    """Return the processor time of this process."""
    return sum(os.times()[:2])


def _own_seconds() -> float:
    """Return the processor time of this process and its descendants, including ended ones."""
    process = psutil.Process()
    seconds = sum(os.times()[:4])
    for child in process.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            seconds += sum(child.cpu_times()[:4])
    return seconds

"""Times short calls on a machine with other load."""

from __future__ import annotations

import contextlib
import math
import os
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

_BLOCK_S = 0.002  # short calls are timed together for at least so long
_MIN_BLOCKS = 3
_QUARTILES = 1.349  # deviations of a normal distribution between its quartiles


@dataclass(frozen=True)
class BlockTimer:
    """Medians over blocks of calls."""

    wall_s: float  # per unit of work, without the time that threads waited for a core
    cores: float  # processor time / wall time
    cv: float  # deviation of a call, relative to its mean, from the quartiles


def measure_time(call: Callable[[], float], seconds: float) -> BlockTimer:
    """Time calls for a given duration, in at least three blocks, after a warm-up call.

    Time that the process waits for a core because of other load is excluded on systems that report
    it (Linux): it isn't a cost of the call.

    Args:
        call: returns the number of units of work that it did, above 0.
    """
    walls: list[float] = []
    cores: list[float] = []
    counts: list[int] = []
    call()
    end = time.perf_counter() + seconds
    while len(walls) < _MIN_BLOCKS or time.perf_counter() < end:
        before, units, wall_s, count = _threads(), 0.0, 0.0, 0
        start, cpu_s = time.perf_counter(), time.process_time()
        while wall_s < _BLOCK_S:
            units += call()
            count += 1
            wall_s = time.perf_counter() - start
        cpu_s = time.process_time() - cpu_s
        busy_s, delay_s = _critical(before, _threads())
        running_s = max(wall_s - delay_s, busy_s, 1e-9)
        walls.append(running_s / units)
        cores.append(cpu_s / running_s)
        counts.append(count)
    middle, (low, _, high) = statistics.median(walls), statistics.quantiles(walls)
    cv = (high - low) / _QUARTILES / middle * math.sqrt(statistics.median(counts))
    return BlockTimer(middle, statistics.median(cores), cv)


def _threads() -> dict[int, tuple[int, int]]:
    """Return the nanoseconds that each thread of this process ran, and waited for a core.

    Empty if the system doesn't report them.
    """
    times: dict[int, tuple[int, int]] = {}
    with contextlib.suppress(OSError, ValueError):
        for thread in os.listdir("/proc/self/task"):
            with open(f"/proc/self/task/{thread}/schedstat", encoding="ascii") as file:
                busy, delay, _ = map(int, file.read().split())
            times[int(thread)] = busy, delay
    return times


def _critical(
    before: dict[int, tuple[int, int]], after: dict[int, tuple[int, int]]
) -> tuple[float, float]:
    """Return the seconds run and delayed, of this thread and of the busiest other one.

    The others work in parallel, and this one waits for all of them.
    """
    grown = {
        thread: [now - then for now, then in zip(at, before.get(thread, at), strict=True)]
        for thread, at in after.items()
    }
    this = grown.pop(threading.get_native_id(), [0, 0])
    busy, delay = (this[i] + max((g[i] for g in grown.values()), default=0) for i in (0, 1))
    return 1e-9 * busy, 1e-9 * delay

"""A clock that counts only time in which this process ran.

After Ctrl-Z, ``kill -STOP`` or a frozen container, other processes may look silent for as long as
this one was stopped.
"""

from __future__ import annotations

import functools
import os
import threading
import time

_TICK_S = 0.25
_MOST_S = 2.0  # largest step: a longer time without a tick means that the process was stopped


class RunningClock:
    """Adds up the time between ticks, except while the process was stopped."""

    def __init__(self) -> None:
        self._lock, self._ran_s, self._last = threading.Lock(), 0.0, time.monotonic()

    def now(self) -> float:
        """Return the seconds for which this process has run since the clock was made."""
        with self._lock:
            now = time.monotonic()
            self._ran_s += min(now - self._last, _MOST_S)
            self._last = now
            return self._ran_s

    def run(self) -> None:
        """Tick for ever."""
        while True:
            time.sleep(_TICK_S)
            self.now()


@functools.lru_cache(maxsize=1)
def _clock() -> RunningClock:
    clock = RunningClock()
    threading.Thread(target=clock.run, name="headrace-clock", daemon=True).start()
    return clock


os.register_at_fork(after_in_child=_clock.cache_clear)  # threads don't survive a fork


def running_s() -> float:
    """Return the seconds for which this process has run, for differences; starts at the first call.

    A thread ticks from then on.
    """
    return _clock().now()

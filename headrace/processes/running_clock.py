"""A clock that counts only the time during which this process was not stopped.

After Ctrl-Z, ``kill -STOP`` or a frozen container, this process has received nothing from others
for a long time. Timeouts must not take that for their silence.
"""

from __future__ import annotations

import functools
import os
import threading
import time

_TICK_S = 0.25
_MOST_S = 2.0  # a longer time between ticks means that the process was stopped


class RunningClock:
    """Adds up the time between ticks, except while the process was stopped."""

    def __init__(self) -> None:
        self._lock, self._ran_s, self._last = threading.Lock(), 0.0, time.monotonic()

    def now(self) -> float:
        """Return the seconds for which this process has run since the clock's construction."""
        with self._lock:
            now = time.monotonic()
            self._ran_s += min(now - self._last, _MOST_S)
            self._last = now
            return self._ran_s

    def run(self) -> None:
        """Tick forever."""
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
    """Return the seconds for which this process has run since the first call.

    Only differences matter. The first call starts a thread that ticks.
    """
    return _clock().now()

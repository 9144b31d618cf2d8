"""Waits for what other processes and threads do, with patience for a busy machine."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 100.0
"""Longest wait for something that takes a second or less on an idle machine."""


def wait_until(
    condition: Callable[[], object],
    explain: Callable[[], object] = lambda: "it never happened",
    pause_s: float = 0.01,
    timeout_s: float = PATIENCE_S,
) -> None:
    """Wait until the condition is true; after ``timeout_s`` fail with an explanation."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(pause_s)

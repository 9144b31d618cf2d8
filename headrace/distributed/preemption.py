"""Preempts stragglers: cuts their rollouts short once enough learners have theirs.

Decentralised distributed PPO (Wijmans et al. 2020, section 3): all learners wait for the slowest
one in the first gradient all-reduce, so its last steps cost more than they gain. Each learner
announces in the group's store that it has its rollouts; a thread of the others watches for that.
"""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from headrace.types import Group

_POLL_S = 0.005


class Preemption:
    """One learner's preemption of rollouts.

    Args:
        group: group of the learners.
        fraction: fraction of learners that must have their rollouts, at most all others; None: off.
        cut: called with an update's number to cut its rollouts short.
    """

    def __init__(self, group: Group, fraction: float | None, cut: Callable[[int], None]) -> None:
        self._group, self._cut = group, cut
        self._inert = fraction is None or group.size == 1
        self._enough = min(group.size - 1, math.ceil((fraction or 0.0) * group.size - 1e-9))
        self._collecting: int | None = None  # update whose rollouts are being collected
        self._wake, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._watch, name="headrace-preempt", daemon=True)
        if not self._inert:
            self._thread.start()

    @contextmanager
    def collecting(self, update: int) -> Iterator[None]:
        """Collect the rollouts of ``update`` inside the block."""
        if self._inert:
            yield
            return
        with self._wake:
            self._collecting = update
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                self._collecting = None
        self._group.note(update)

    def _watch(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._collecting is not None)
                if self._closed:
                    return
                update = self._collecting
            if update is not None and self._num_ready(update) >= self._enough:
                with self._wake:
                    if self._collecting == update:
                        self._cut(update)
                        self._collecting = None
                continue
            with self._wake:
                self._wake.wait(_POLL_S)

    def _num_ready(self, update: int) -> int:
        with contextlib.suppress(
            RuntimeError
        ):  # without the store, the next all-reduce fails as well
            return sum(number >= update for number in self._group.notes())
        return 0

    def close(self) -> None:
        """Stop the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if not self._inert:
            self._thread.join(5)

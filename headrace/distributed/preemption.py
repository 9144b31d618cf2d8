"""Stragglers: once enough learners have their rollouts, the others cut theirs short.

Decentralised distributed PPO (Wijmans et al. 2020, section 3): everybody waits for the slowest
learner in the first gradient sum, so its last steps cost more than they bring. Each learner says in
the group's store when it has its rollouts; a thread of one that hasn't watches for that.
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
    """One learner's end.

    Args:
        group: of the learners.
        fraction: of them that must have their rollouts; at most, all others. None: nobody cuts.
        cut: called with an update's number when its rollouts are to end where they are.
    """

    def __init__(self, group: Group, fraction: float | None, cut: Callable[[int], None]) -> None:
        self._group, self._cut = group, cut
        self._inert = fraction is None or group.size == 1
        self._enough = min(group.size - 1, math.ceil((fraction or 0.0) * group.size - 1e-9))
        self._wanted: int | None = None  # the update that rollouts are collected for
        self._wake, self._closed = threading.Condition(), False
        self._thread = threading.Thread(target=self._watch, name="headrace-preempt", daemon=True)
        if not self._inert:
            self._thread.start()

    @contextmanager
    def collecting(self, update: int) -> Iterator[None]:
        """This learner gets its rollouts of ``update`` inside."""
        if self._inert:
            yield
            return
        with self._wake:
            self._wanted = update
            self._wake.notify()
        try:
            yield
        finally:
            with self._wake:
                self._wanted = None
        self._group.note(update)

    def _watch(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(lambda: self._closed or self._wanted is not None)
                if self._closed:
                    return
                update = self._wanted
            if update is not None and self._num_ready(update) >= self._enough:
                with self._wake:
                    if self._wanted == update:
                        self._cut(update)
                        self._wanted = None
                continue
            with self._wake:
                self._wake.wait(_POLL_S)

    def _num_ready(self, update: int) -> int:
        with contextlib.suppress(RuntimeError):  # a store that is gone fails the next sum as well
            return sum(number >= update for number in self._group.notes())
        return 0

    def close(self) -> None:
        """End the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
        if not self._inert:
            self._thread.join(5)

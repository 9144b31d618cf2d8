"""Actors and learner in one process and one thread: ``take`` runs the actors itself."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from headrace.transport.queue import (
    Header,
    Pending,
    clear_header,
    poison_tree,
    read_header,
    write_divergence,
)
from headrace.transport.slab import Slab


class SerialQueue:
    """The queue that needs no other process, for debugging and for cheap environments.

    Args:
        slab: ``num_actors * slots_per_actor`` slots; actor a owns a contiguous range.
        num_actors: how many actors will be attached.
        slots_per_actor: how many slots each owns.
        ordered: see :class:`~headrace.transport.queue.Pending`.
        poison: overwrite the trees of slots whenever they become free: a stale read shows.
    """

    def __init__(
        self, slab: Slab, num_actors: int, slots_per_actor: int, ordered: bool, poison: bool = False
    ) -> None:
        self._slab, self._per_actor, self._poison = slab, slots_per_actor, poison
        self._pending = Pending(num_actors, ordered)
        self._free = [
            deque(range(a * slots_per_actor, (a + 1) * slots_per_actor)) for a in range(num_actors)
        ]
        self._run: list[Callable[[], object] | None] = [None] * num_actors
        self._turn = 0
        self._closed = False
        for slot in range(num_actors * slots_per_actor):
            clear_header(slab.headers[slot])
            if poison:
                poison_tree(slab, slot)

    def attach(self, actor: int, run_once: Callable[[], object]) -> None:
        """``run_once`` acquires, fills and commits one slot through :meth:`port`."""
        self._run[actor] = run_once

    def port(self, actor: int) -> SerialPort:
        """The actor's end."""
        return SerialPort(self, actor)

    def take(self, count: int, timeout_s: float) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`; runs actors that have free slots."""
        while True:
            slots = self._pending.take(count)
            if slots is not None:
                return slots
            self._run_next(count)

    def _run_next(self, count: int) -> None:
        num_actors = len(self._free)
        for step in range(num_actors):
            actor = (self._turn + step) % num_actors
            run_once = self._run[actor]
            if self._free[actor] and run_once is not None:
                self._turn = actor + 1
                run_once()
                return
        raise TimeoutError(
            f"take({count}) can never be served: actors {self._pending.missing(count)} "
            "have no free slot left"
        )

    def release(self, slots: list[int]) -> None:
        """Give slots back to the actors that own them."""
        for slot in slots:
            if self._poison:
                poison_tree(self._slab, slot)
            self._free[slot // self._per_actor].append(slot)

    def note(self, slot: int, nats: float) -> None:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        write_divergence(self._slab.headers[slot], nats)

    def tree(self, slot: int) -> Any:
        """The tree of tensors in a slot."""
        return self._slab.trees[slot]

    def header(self, slot: int) -> Header:
        """The header of a slot."""
        return read_header(self._slab.headers[slot])

    def depth(self) -> int:
        """Rollouts that are committed and not yet taken."""
        return len(self._pending)

    def close(self) -> None:
        """No slot can be acquired any more."""
        self._closed = True


class SerialPort:
    """The actor's end of a :class:`SerialQueue`."""

    def __init__(self, queue: SerialQueue, actor: int) -> None:
        self._queue, self._actor = queue, actor

    def acquire(self, timeout_s: float) -> int | None:
        """The next free slot; None once closed.

        Raises:
            TimeoutError: at once, since waiting in the only thread would last for ever.
        """
        if self._queue._closed:
            return None
        if not self._queue._free[self._actor]:
            raise TimeoutError(f"actor {self._actor}: the learner holds all of its slots")
        return self._queue._free[self._actor].popleft()

    def commit(self, slot: int) -> None:
        """Hand a filled slot to the learner."""
        committed_ns = self._queue.header(slot).committed_ns
        self._queue._pending.add(self._actor, slot, committed_ns)

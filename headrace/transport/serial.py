"""Runs actors and learner in one process and one thread: ``take`` runs the actors itself."""

from __future__ import annotations

from collections.abc import Callable

from headrace.transport.slots import Slots


class SerialQueue:
    """Queue without other processes, for debugging and for cheap environments."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._run: dict[int, Callable[[], object]] = {}
        self._turn = 0
        self._closed = False

    def attach(self, actor: int, run_once: Callable[[], object]) -> None:
        """Register a function that acquires, fills and commits one slot through :meth:`port`."""
        self._run[actor] = run_once

    def port(self, actor: int) -> SerialPort:
        """Return the actor's end."""
        return SerialPort(self, actor)

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`; runs actors that have free slots."""
        while (slots := self._slots.take(count, task)) is None:
            ready = [actor for actor in self._run if self._slots.can_grant(actor)]
            if not ready:
                raise TimeoutError(
                    f"take({count}) can never succeed: actors {self._slots.missing(count, task)} "
                    "have no free slot left"
                )
            actor = min(ready, key=lambda a: (a - self._turn) % self._slots.num_actors)
            self._turn = actor + 1
            self._run[actor]()
        return slots

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self._slots.release(slot)

    def close(self) -> None:
        self._closed = True


class SerialPort:
    """Actor's end of a :class:`SerialQueue`."""

    def __init__(self, queue: SerialQueue, actor: int) -> None:
        self._queue, self._actor = queue, actor

    def orders(self) -> list[bytes]:
        """Always empty, because actors of this process receive orders directly."""
        return []

    def acquire(self, timeout_s: float) -> int | None:
        """See :class:`~headrace.transport.queue.ActorPort`.

        Raises:
            TimeoutError: no slot is free; raised at once, because the only thread can't wait.
        """
        if self._queue._closed:
            return None
        slot = self._queue._slots.grant(self._actor)
        if slot is None:
            raise TimeoutError(f"actor {self._actor}: the learner holds all of its slots")
        return slot

    def commit(self, slot: int, message: bytes = b"") -> None:
        self._queue._slots.commit(slot, message)

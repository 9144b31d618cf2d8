"""Tracks the slots that carry rollouts: ownership, grants, commits and releases."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from headrace.processes.running_clock import running_s
from headrace.transport.queue import Header, nano, read_header

_DIVERGENCE = Header._fields.index("divergence_nano")


class SlotStorage(Protocol):
    """Storage of slots, such as a :class:`~headrace.transport.slab.Slab`."""

    headers: np.ndarray  # [num_slots, NUM_HEADER_FIELDS] int64

    @property
    def trees(self) -> Sequence[Any]:
        """Trees of tensors, by slot."""

    def poison(self, slot: int) -> None:
        """Make later reads of the slot's tree impossible or visible."""


class Slots:
    """Tracks owners and states of slots, and the order in which filled slots are taken.

    A slot is free until it is granted to its actor, open until the actor has filled it, and then
    committed and taken until it is released. At most ``num_credits`` slots are not free.

    Args:
        slab: ``num_actors * per_actor`` slots; actor a owns a contiguous range.
        ordered: take equally many slots from each actor, in the order of actors, so that batches
            don't depend on timing. False: in the order of commits, so that slow actors don't delay
            others.
        poison: overwrite the trees of free slots, so that stale reads are noticed.
        num_credits: in-flight limit, in rollouts; None: the number of slots.
        num_tasks: tasks, assigned to actors in rotation. Each has its share of the credits, so
            that actors of one task never wait for those of another.
        max_open: largest number of open slots per actor; None: no limit.
    """

    def __init__(
        self,
        slab: SlotStorage,
        num_actors: int,
        per_actor: int,
        ordered: bool,
        poison: bool = False,
        num_credits: int | None = None,
        num_tasks: int = 1,
        max_open: int | None = None,
    ) -> None:
        self._slab, self._per_actor, self._ordered = slab, per_actor, ordered
        self._max_open = per_actor if max_open is None else max_open
        self._poison, self.num_actors = poison, num_actors
        num_slots = num_actors * per_actor
        total = num_slots if num_credits is None else num_credits
        self._credits = [total // num_tasks] * num_tasks
        self._num_tasks, self._scarce = num_tasks, total < num_slots
        self._free = [deque(self.of(actor)) for actor in range(num_actors)]
        self._open: list[list[int]] = [[] for _ in range(num_actors)]
        self._committed: list[deque[tuple[int, int]]] = [deque() for _ in range(num_actors)]
        self._last_commit = [0] * num_actors  # counted over all actors, from 1
        self._num_commits = 0
        self._absent: set[int] = set()
        self._active_s = [0.0] * num_actors  # time of the last commit, or grant to an idle actor
        self._delivered = [0] * num_actors
        self._messages: dict[int, bytes] = {}  # by slot
        self.lost = 0  # unfinished rollouts of actors that died
        for slot in range(num_slots):
            self._clear(slot, keep_header=False)

    def __len__(self) -> int:
        """Return the number of slots committed and not yet taken."""
        return sum(map(len, self._committed))

    def of(self, actor: int) -> range:
        """Return the slots that an actor owns."""
        return range(actor * self._per_actor, (actor + 1) * self._per_actor)

    def owner(self, slot: int) -> int:
        """Return the actor that owns a slot."""
        return slot // self._per_actor

    def task(self, actor: int) -> int:
        """Return the task of an actor."""
        return actor % self._num_tasks

    def header(self, slot: int) -> Header:
        """Return the header of a slot."""
        return read_header(self._slab.headers[slot])

    def note(self, slot: int, nats: float) -> None:
        """Write :attr:`Header.divergence`, 0 or more, to a taken slot for its actor."""
        self._slab.headers[slot][_DIVERGENCE] = nano(nats)

    def _clear(self, slot: int, keep_header: bool) -> None:
        """Prepare a slot for its actor, with or without the header of its last rollout."""
        header = self._slab.headers[slot].copy() if keep_header else -1
        if self._poison:
            self._slab.poison(slot)
        self._slab.headers[slot][:] = header

    def can_grant(self, actor: int) -> bool:
        """Return True if this actor may open a slot, has a free one and its task has credits."""
        able = self._credits[self.task(actor)] > 0 and actor not in self._absent
        return able and bool(self._free[actor]) and len(self._open[actor]) < self._max_open

    def grant(self, actor: int | None = None) -> int | None:
        """Open a free slot of this actor, or of the next actor in turn; None if none is free.

        The actor with the fewest open slots is next. Among those without open slots it is the one
        that committed longest ago, otherwise the one that committed last, which is the fastest.
        """
        candidates = range(self.num_actors) if actor is None else [actor]
        able = [a for a in candidates if self.can_grant(a)]
        if not able:
            return None
        actor = min(able, key=self._turn) if self._scarce else able[0]
        slot = self._free[actor].popleft()
        if not self._open[actor]:
            self._active_s[actor] = running_s()
        self._open[actor].append(slot)
        self._credits[self.task(actor)] -= 1
        return slot

    def _turn(self, actor: int) -> tuple[int, int]:
        num_open, last = len(self._open[actor]), self._last_commit[actor]
        return num_open, -last if num_open else last

    def open(self, actor: int) -> list[int]:
        """Return the slots granted to this actor and not committed, in the order of grants."""
        return list(self._open[actor])

    def leave(self, actor: int) -> None:
        """Unregister an actor: its open slots become free, and it is granted no more."""
        self._absent.add(actor)
        self._credits[self.task(actor)] += len(self._open[actor])
        self._free[actor].extendleft(reversed(self._open[actor]))
        self._open[actor].clear()

    def join(self, actor: int) -> None:
        """Register a replacement actor."""
        self._absent.discard(actor)
        self.forget(actor)

    def is_present(self, actor: int) -> bool:
        """Return True if this actor is registered."""
        return actor not in self._absent

    @property
    def present(self) -> int:
        """Number of registered actors."""
        return self.num_actors - len(self._absent)

    def forget(self, actor: int) -> None:
        """Clear the slots and counters of an actor that was replaced."""
        self._active_s[actor], self._delivered[actor] = running_s(), 0
        for slot in (*self._free[actor], *self._open[actor]):
            self._clear(slot, keep_header=False)

    def commit(self, slot: int, message: bytes = b"") -> None:
        """Record a filled slot and its message; slots of one actor arrive in its order."""
        if message:
            self._messages[slot] = message
        actor = self.owner(slot)
        self._open[actor].remove(slot)
        self._committed[actor].append((self.header(slot).committed_ns, slot))
        self._num_commits += 1
        self._last_commit[actor] = self._num_commits
        self._active_s[actor] = running_s()
        self._delivered[actor] += 1

    def silent_s(self, actor: int) -> float:
        """Return the seconds for which this actor has had a slot to fill and committed nothing."""
        return running_s() - self._active_s[actor] if self._open[actor] else 0.0

    def last_active_s(self, actor: int) -> float:
        """Return the ``running_s`` of the last commit, or of a grant while the actor was idle."""
        return self._active_s[actor]

    def reset_silence(self) -> None:
        """Reset all actors' silence, as if each had just committed."""
        self._active_s = [running_s()] * self.num_actors

    def delivered(self, actor: int) -> int:
        """Return the number of rollouts that this actor has committed since its start."""
        return self._delivered[actor]

    def release(self, slot: int) -> None:
        """Free a taken slot; the actor that receives it next reads its header."""
        self._clear(slot, keep_header=True)
        actor = self.owner(slot)
        self._free[actor].append(slot)
        self._credits[self.task(actor)] += 1

    def message(self, slot: int) -> bytes:
        """Pop the message that came with a taken slot."""
        return self._messages.pop(slot, b"")

    def waiting(self, task: int) -> int:
        """Return the number of slots of a task that are committed and not yet taken."""
        return sum(map(len, self._of_task(task)))

    def _of_task(self, task: int) -> list[deque[tuple[int, int]]]:
        return self._committed[task :: self._num_tasks]

    def take(self, count: int, task: int = 0) -> list[int] | None:
        """Take ``count`` committed slots of a task; None while there are too few."""
        queues = self._of_task(task)
        if not self._ordered:
            if self.waiting(task) < count:
                return None
            return [_earliest(queues) for _ in range(count)]
        share, rest = divmod(count, len(queues))
        if rest:
            raise ValueError(f"{count} rollouts can't be divided evenly among {len(queues)} actors")
        if min(map(len, queues)) < share:
            return None
        return [queue.popleft()[1] for queue in queues for _ in range(share)]

    def wait(
        self, count: int, timeout_s: float, receive: Callable[[float], None], task: int = 0
    ) -> list[int]:
        """Wait for :meth:`take` to succeed, see :meth:`RolloutQueue.take`.

        Args:
            receive: commits slots that have arrived, or waits up to this many seconds for one.
        """
        deadline, remaining = time.monotonic() + timeout_s, 0.0
        while True:
            receive(remaining)
            if (slots := self.take(count, task)) is not None:
                return slots
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"no rollout in {timeout_s:g} s from actors {self.missing(count, task)}"
                )

    def missing(self, count: int, task: int = 0) -> list[int]:
        """Return the actors that a ``take`` of ``count`` still waits for."""
        actors = range(task, self.num_actors, self._num_tasks)
        share = count // len(actors) if self._ordered else 1
        return [actor for actor in actors if len(self._committed[actor]) < share]


def _earliest(queues: list[deque[tuple[int, int]]]) -> int:
    return min(filter(None, queues), key=lambda queue: queue[0]).popleft()[1]

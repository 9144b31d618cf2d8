"""The slots of a slab that rollouts go through: who may fill one, and who reads it when."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from headrace.transport.queue import Header, nano, read_header

_DIVERGENCE = Header._fields.index("divergence_nano")


class SlotStorage(Protocol):
    """What slots are held in: a :class:`~headrace.transport.slab.Slab`, or what is like it."""

    headers: list[np.ndarray]  # int64, by slot

    def poison(self, slot: int) -> None:
        """Let nobody read the slot's tree any more, or have them notice it."""


class Slots:
    """A slab's slots: who owns which, who may fill one, and in what order to take what is filled.

    A slot is free until it is granted to its actor, open until that has filled it, and held, first
    committed and then taken, until it is released. At most ``num_credits`` are not free.

    Args:
        slab: ``num_actors * per_actor`` slots; actor a owns a contiguous range.
        ordered: equally many are taken from each actor, by actor, so that the batch does not depend
            on timing; otherwise by time of commit, so that a slow actor delays nobody.
        poison: overwrite the trees of slots whenever they become free: a stale read shows.
        num_credits: rollouts that may be begun or waiting at a time; None: as many as slots.
        num_tasks: which actors take turns at; each has its share of the credits, so that those of
            one never wait for another's.
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
    ) -> None:
        self._slab, self._per_actor, self._ordered = slab, per_actor, ordered
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
        self._active_s = [0.0] * num_actors  # when it last committed, or had something to do again
        self._delivered = [0] * num_actors
        self._told: dict[int, bytes] = {}  # by slot, the message that came with it
        self.lost = 0  # rollouts that actors had begun which died
        for slot in range(num_slots):
            self._clear(slot, told=False)

    def __len__(self) -> int:
        """Slots that are committed and not yet taken, as far as is known here."""
        return sum(map(len, self._committed))

    def of(self, actor: int) -> range:
        """The slots that an actor owns."""
        return range(actor * self._per_actor, (actor + 1) * self._per_actor)

    def owner(self, slot: int) -> int:
        """The actor that owns a slot."""
        return slot // self._per_actor

    def task(self, actor: int) -> int:
        """What an actor acts at."""
        return actor % self._num_tasks

    def header(self, slot: int) -> Header:
        """The header of a slot."""
        return read_header(self._slab.headers[slot])

    def note(self, slot: int, nats: float) -> None:
        """Put :attr:`Header.divergence`, 0 or more, into a taken slot, for the actor it goes to."""
        self._slab.headers[slot][_DIVERGENCE] = nano(nats)

    def _clear(self, slot: int, told: bool) -> None:
        """Prepare a slot for its actor, which is ``told`` its header: else nothing is known."""
        header = self._slab.headers[slot].copy() if told else -1
        if self._poison:
            self._slab.poison(slot)
        self._slab.headers[slot][:] = header

    def can_grant(self, actor: int) -> bool:
        """Whether this actor has a free slot and its task credits."""
        able = self._credits[self.task(actor)] > 0 and actor not in self._absent
        return able and bool(self._free[actor])

    def grant(self, actor: int | None = None) -> int | None:
        """Open a free slot, of this actor or of the one whose turn it is; None: there is none.

        It is the turn of the actor with the fewest open slots: of those without any the one that
        committed longest ago, of others the one that committed last, which is the fastest.
        """
        asked = range(self.num_actors) if actor is None else [actor]
        able = [a for a in asked if self.can_grant(a)]
        if not able:
            return None
        actor = min(able, key=self._turn) if self._scarce else able[0]
        slot = self._free[actor].popleft()
        if not self._open[actor]:
            self._active_s[actor] = time.monotonic()
        self._open[actor].append(slot)
        self._credits[self.task(actor)] -= 1
        return slot

    def _turn(self, actor: int) -> tuple[int, int]:
        num_open, last = len(self._open[actor]), self._last_commit[actor]
        return num_open, -last if num_open else last

    def open(self, actor: int) -> list[int]:
        """The slots that were granted to this actor and not committed, in the order of grants."""
        return list(self._open[actor])

    def leave(self, actor: int) -> None:
        """The actor is gone for now: its open slots are free again, and it is granted none."""
        self._absent.add(actor)
        self._credits[self.task(actor)] += len(self._open[actor])
        self._free[actor].extendleft(reversed(self._open[actor]))
        self._open[actor].clear()

    def join(self, actor: int) -> None:
        """The actor is there, and another one than before."""
        self._absent.discard(actor)
        self.forget(actor)

    def is_present(self, actor: int) -> bool:
        """Whether it hasn't left."""
        return actor not in self._absent

    @property
    def present(self) -> int:
        """Actors that haven't left."""
        return self.num_actors - len(self._absent)

    def forget(self, actor: int) -> None:
        """The actor is another one from now on: what slots told the former one is forgotten."""
        self._active_s[actor], self._delivered[actor] = time.monotonic(), 0
        for slot in (*self._free[actor], *self._open[actor]):
            self._clear(slot, told=False)

    def commit(self, slot: int, told: bytes = b"") -> None:
        """Record a filled slot and its message; slots of one actor arrive in its order."""
        if told:
            self._told[slot] = told
        actor = self.owner(slot)
        self._open[actor].remove(slot)
        self._committed[actor].append((self.header(slot).committed_ns, slot))
        self._num_commits += 1
        self._last_commit[actor] = self._num_commits
        self._active_s[actor] = time.monotonic()
        self._delivered[actor] += 1

    def silent_s(self, actor: int) -> float:
        """Seconds for which this actor has had a slot to fill and committed nothing."""
        return time.monotonic() - self._active_s[actor] if self._open[actor] else 0.0

    def heard_s(self, actor: int) -> float:
        """When it last committed, or had something to do again (``time.monotonic()``)."""
        return self._active_s[actor]

    def excuse(self) -> None:
        """Take all actors as having committed something just now."""
        self._active_s = [time.monotonic()] * self.num_actors

    def delivered(self, actor: int) -> int:
        """Rollouts that this actor has committed since it was another one."""
        return self._delivered[actor]

    def release(self, slot: int) -> None:
        """A taken slot is free again; whom it is granted to next is told its header."""
        self._clear(slot, told=True)
        actor = self.owner(slot)
        self._free[actor].append(slot)
        self._credits[self.task(actor)] += 1

    def told(self, slot: int) -> bytes:
        """The message that came with a taken slot; removes it."""
        return self._told.pop(slot, b"")

    def waiting(self, task: int) -> int:
        """Slots of a task that are committed and not yet taken, as far as is known here."""
        return sum(map(len, self._of_task(task)))

    def _of_task(self, task: int) -> list[deque[tuple[int, int]]]:
        return self._committed[task :: self._num_tasks]

    def take(self, count: int, task: int = 0) -> list[int] | None:
        """``count`` committed slots of a task, or None while there are too few."""
        queues = self._of_task(task)
        if not self._ordered:
            if self.waiting(task) < count:
                return None
            return [_earliest(queues) for _ in range(count)]
        share, rest = divmod(count, len(queues))
        if rest:
            raise ValueError(f"{count} rollouts can't come equally from {len(queues)} actors")
        if min(map(len, queues)) < share:
            return None
        return [queue.popleft()[1] for queue in queues for _ in range(share)]

    def wait(
        self, count: int, timeout_s: float, receive: Callable[[float], None], task: int = 0
    ) -> list[int]:
        """:meth:`take` as soon as it can be, see :meth:`RolloutQueue.take`.

        Args:
            receive: commits what has arrived, or waits for something for so many seconds.
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
        """The actors that a ``take`` of ``count`` still waits for."""
        actors = range(task, self.num_actors, self._num_tasks)
        share = count // len(actors) if self._ordered else 1
        return [actor for actor in actors if len(self._committed[actor]) < share]


def _earliest(queues: list[deque[tuple[int, int]]]) -> int:
    return min(filter(None, queues), key=lambda queue: queue[0]).popleft()[1]

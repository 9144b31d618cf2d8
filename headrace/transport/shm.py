"""Rollouts through shared memory; only slot numbers travel, over one pipe per actor.

    actor a                                       learner
      acquire   <---- slot number, pipe a ------  release / connect
      (fills the slot in shared memory)
      commit    ----- slot number, pipe a ----->  take

    actor    produces: filled slots    waits for: a slot number    unblocked by: release, close
    learner  produces: free slots      waits for: slot numbers     unblocked by: commit, death

A slot goes back with a number in its header, which is written before the slot's number is sent.
No lock is shared, so a process killed at any instant stops nobody: its pipe ends, which the
learner reads as its death. A slot counts as filled only when its number has arrived.
"""

from __future__ import annotations

import contextlib
import struct
import time
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any

from headrace.transport.queue import (
    Header,
    PeerDied,
    Pending,
    clear_header,
    poison_tree,
    read_header,
    write_divergence,
)
from headrace.transport.slab import Slab

_NUMBER = struct.Struct("<q")


class ShmQueue:
    """The learner's end, for actors in other processes of this machine.

    Args:
        slab: shared, ``num_actors * slots_per_actor`` slots; actor a owns a contiguous range.
        num_actors: how many actors will connect.
        slots_per_actor: how many slots each owns.
        ordered: see :class:`~headrace.transport.queue.Pending`.
        poison: overwrite the trees of slots whenever they become free: a stale read shows.
    """

    def __init__(
        self, slab: Slab, num_actors: int, slots_per_actor: int, ordered: bool, poison: bool = False
    ) -> None:
        self._slab, self._per_actor, self._poison = slab, slots_per_actor, poison
        self._pending = Pending(num_actors, ordered)
        self._held: set[int] = set()  # committed or taken: the actor must not write to them
        self._pipes: dict[int, Connection] = {}
        self._last_words: dict[int, str] = {}  # tracebacks whose pipe has not ended yet
        self._active_s = [0.0] * num_actors

    def connect(self, actor: int) -> Connection:
        """A fresh pipe for this actor, with all of its free slots granted; returns its end.

        What these slots' headers told an actor that died is forgotten.
        """
        if actor in self._pipes:
            raise ValueError(f"actor {actor} is connected already")
        ours, theirs = Pipe()
        self._pipes[actor] = ours
        self._active_s[actor] = time.monotonic()
        for slot in range(actor * self._per_actor, (actor + 1) * self._per_actor):
            if slot not in self._held:
                clear_header(self._slab.headers[slot])
                self._grant(slot)
        return theirs

    def _grant(self, slot: int) -> None:
        pipe = self._pipes.get(slot // self._per_actor)
        if self._poison:
            poison_tree(self._slab, slot)
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # take() reports it
                pipe.send_bytes(_NUMBER.pack(slot))

    def take(self, count: int, timeout_s: float) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        deadline = time.monotonic() + timeout_s
        ready = wait(list(self._pipes.values()), timeout=0)
        while True:
            for actor in [a for a, pipe in self._pipes.items() if pipe in ready]:
                self._receive(actor)
            slots = self._pending.take(count)
            if slots is not None:
                return slots
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"no rollout in {timeout_s:g} s from actors {self._pending.missing(count)}"
                )
            ready = wait(list(self._pipes.values()), timeout=remaining)

    def _receive(self, actor: int) -> None:
        pipe = self._pipes[actor]
        try:
            while pipe.poll():
                message = pipe.recv_bytes()
                if len(message) == _NUMBER.size:
                    slot = _NUMBER.unpack(message)[0]
                    self._held.add(slot)
                    self._active_s[actor] = time.monotonic()
                    self._pending.add(actor, slot, self.header(slot).committed_ns)
                else:
                    self._last_words[actor] = message.decode(errors="replace")
        except (EOFError, ConnectionResetError):
            del self._pipes[actor]
            pipe.close()
            raise PeerDied(actor, self._last_words.pop(actor, "")) from None

    def release(self, slots: list[int]) -> None:
        """Give slots back to the actors that own them."""
        for slot in slots:
            actor = slot // self._per_actor
            if self._held.issuperset(range(actor * self._per_actor, (actor + 1) * self._per_actor)):
                self._active_s[actor] = time.monotonic()  # it had nothing to do until now
            self._held.remove(slot)
            self._grant(slot)

    def note(self, slot: int, nats: float) -> None:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        write_divergence(self._slab.headers[slot], nats)

    def silent_s(self, actor: int) -> float:
        """Seconds for which this actor has had a free slot and committed nothing."""
        owned = range(actor * self._per_actor, (actor + 1) * self._per_actor)
        idle = self._held.issuperset(owned)
        return 0.0 if idle else time.monotonic() - self._active_s[actor]

    def tree(self, slot: int) -> Any:
        """The tree of tensors in a slot."""
        return self._slab.trees[slot]

    def header(self, slot: int) -> Header:
        """The header of a slot."""
        return read_header(self._slab.headers[slot])

    def depth(self) -> int:
        """Rollouts that are committed and known here, and not yet taken."""
        return len(self._pending)

    def close(self) -> None:
        """End every pipe: actors that wait for a slot wake up and leave."""
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()


class ShmPort:
    """The actor's end; lives in the actor's process.

    Args:
        pipe: what :meth:`ShmQueue.connect` returned.
    """

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def acquire(self, timeout_s: float) -> int | None:
        """The next free slot; None when the learner closed the queue or died.

        Raises:
            TimeoutError: the learner gave none in time.
        """
        try:
            if not self._pipe.poll(timeout_s):
                raise TimeoutError(f"the learner released no slot for {timeout_s:g} s")
            return int(_NUMBER.unpack(self._pipe.recv_bytes())[0])
        except (EOFError, ConnectionResetError):
            return None

    def commit(self, slot: int) -> None:
        """Hand a filled slot to the learner; if it is gone, the next ``acquire`` says so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send_bytes(_NUMBER.pack(slot))

    def fail(self, traceback: str) -> None:
        """Tell the learner why this actor ends."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(traceback.encode() + b" " * _NUMBER.size)

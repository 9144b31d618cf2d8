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

from headrace.transport.queue import PeerDied, Slots

_NUMBER = struct.Struct("<q")


class ShmQueue:
    """The learner's end, for actors in other processes of this machine; slots are shared memory."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._pipes: dict[int, Connection] = {}
        self._last_words: dict[int, str] = {}  # tracebacks whose pipe has not ended yet
        self._active_s = [0.0] * slots.num_actors
        self._delivered = [0] * slots.num_actors
        self._grant()

    def connect(self, actor: int) -> Connection:
        """A fresh pipe for this actor, with all of its open slots in it; returns its end."""
        if actor in self._pipes:
            raise ValueError(f"actor {actor} is connected already")
        ours, theirs = Pipe()
        self._pipes[actor] = ours
        self._active_s[actor], self._delivered[actor] = time.monotonic(), 0
        self._slots.forget(actor)
        for slot in self._slots.open(actor):
            self._send(actor, slot)
        return theirs

    def _grant(self) -> None:
        while (slot := self._slots.grant()) is not None:
            actor = self._slots.owner(slot)
            if self._slots.open(actor) == [slot]:
                self._active_s[actor] = time.monotonic()  # it had nothing to do until now
            self._send(actor, slot)

    def _send(self, actor: int, slot: int) -> None:
        pipe = self._pipes.get(actor)
        if pipe is not None:  # else :meth:`connect` sends it
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # take() reports it
                pipe.send_bytes(_NUMBER.pack(slot))

    def take(self, count: int, timeout_s: float) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        deadline, remaining = time.monotonic() + timeout_s, 0.0
        while True:
            ready = wait(list(self._pipes.values()), timeout=remaining)
            for actor in [a for a, pipe in self._pipes.items() if pipe in ready]:
                self._receive(actor)
            slots = self._slots.take(count)
            if slots is not None:
                return slots
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                raise TimeoutError(
                    f"no rollout in {timeout_s:g} s from actors {self._slots.missing(count)}"
                )

    def _receive(self, actor: int) -> None:
        pipe = self._pipes[actor]
        try:
            while pipe.poll():
                message = pipe.recv_bytes()
                if len(message) == _NUMBER.size:
                    slot = _NUMBER.unpack(message)[0]
                    self._active_s[actor] = time.monotonic()
                    self._delivered[actor] += 1
                    self._slots.commit(slot)
                else:
                    self._last_words[actor] = message.decode(errors="replace")
        except (EOFError, ConnectionResetError):
            del self._pipes[actor]
            pipe.close()
            raise PeerDied(actor, self._last_words.pop(actor, "")) from None

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self._slots.release(slot)
        self._grant()

    def silent_s(self, actor: int) -> float:
        """Seconds for which this actor has had a slot to fill and committed nothing."""
        return time.monotonic() - self._active_s[actor] if self._slots.open(actor) else 0.0

    def excuse(self) -> None:
        """Take all actors as having committed something just now."""
        self._active_s = [time.monotonic()] * len(self._active_s)

    def delivered(self, actor: int) -> int:
        """Rollouts that this actor has committed since it was connected."""
        return self._delivered[actor]

    def close(self) -> None:
        """End every pipe: actors that wait for a slot wake up and leave."""
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()


class ShmPort:
    """The actor's end, in its process, of the pipe that :meth:`ShmQueue.connect` returned."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def acquire(self, timeout_s: float) -> int | None:
        """See :class:`~headrace.transport.queue.ActorPort`; None also when the learner died."""
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

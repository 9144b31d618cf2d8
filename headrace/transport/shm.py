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
import os
import socket
import struct
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait

from headrace.transport.queue import PeerDied
from headrace.transport.slots import Slots

_NUMBER = struct.Struct("<q")
_FAILED = -1  # in place of a slot's number: the actor's last words follow
_ORDER = -2  # likewise: an order of the learner follows
_LONGEST_S = 1e9


class ShmQueue:
    """The learner's end, for actors in other processes of this machine; slots are shared memory.

    Args:
        timeout_s: how long a full pipe may keep a message to an actor that doesn't read.
    """

    def __init__(self, slots: Slots, timeout_s: float = 300.0) -> None:
        self.slots, self._timeout_s = slots, timeout_s
        self.deaf: set[int] = set()  # actors that didn't read in time; they get nothing more
        self._pipes: dict[int, Connection] = {}
        self._last_words: dict[int, str] = {}  # tracebacks whose pipe has not ended yet
        self._grant()

    def connect(self, actor: int) -> Connection:
        """A fresh pipe for this actor, with all of its open slots in it; returns its end."""
        if actor in self._pipes:
            raise ValueError(f"actor {actor} is connected already")
        ours, theirs = Pipe()
        _bound_sends(ours, self._timeout_s)
        self._pipes[actor] = ours
        self.deaf.discard(actor)
        self.slots.forget(actor)
        for slot in self.slots.open(actor):
            self._send(actor, slot)
        return theirs

    def _grant(self) -> None:
        while (slot := self.slots.grant()) is not None:
            self._send(self.slots.owner(slot), slot)

    def _send(self, actor: int, slot: int, rest: bytes = b"") -> None:
        pipe = self._pipes.get(actor)
        if pipe is None or actor in self.deaf:  # connect() sends it
            return
        try:
            pipe.send_bytes(_NUMBER.pack(slot) + rest)
        except BlockingIOError:  # half of it may be sent
            self.deaf.add(actor)
        except (BrokenPipeError, ConnectionResetError):
            pass  # take() reports it

    def order(self, text: bytes) -> None:
        """Send an order to all connected actors, who receive it before their next slots."""
        for actor in self._pipes:
            self._send(actor, _ORDER, text)

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        return self.slots.wait(count, timeout_s, self._receive_any, task)

    def _receive_any(self, timeout_s: float) -> None:
        ready = wait(list(self._pipes.values()), timeout=timeout_s)
        for actor in [a for a, pipe in self._pipes.items() if pipe in ready]:
            self._receive(actor)

    def _receive(self, actor: int) -> None:
        pipe = self._pipes[actor]
        try:
            while pipe.poll():
                message = pipe.recv_bytes()
                (slot,), rest = _NUMBER.unpack(message[: _NUMBER.size]), message[_NUMBER.size :]
                if slot == _FAILED:
                    self._last_words[actor] = rest.decode(errors="replace")
                else:
                    self.slots.commit(slot, rest)
        except (EOFError, ConnectionResetError):
            del self._pipes[actor]
            pipe.close()
            self.slots.lost += bool(self.slots.open(actor))  # it fills one at a time
            raise PeerDied(actor, self._last_words.pop(actor, "")) from None

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self.slots.release(slot)
        self._grant()

    def close(self) -> None:
        """End every pipe: actors that wait for a slot wake up and leave."""
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()


def _bound_sends(pipe: Connection, timeout_s: float) -> None:
    """Make sends through one end of a pipe raise BlockingIOError after a time."""
    whole, rest = divmod(min(max(timeout_s, 1e-6), _LONGEST_S), 1.0)
    limit = struct.pack("@ll", int(whole), int(rest * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setblocking(True)  # whatever socket.setdefaulttimeout says
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class ShmPort:
    """The actor's end, in its process, of the pipe that :meth:`ShmQueue.connect` returned."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._orders: list[bytes] = []

    def orders(self) -> list[bytes]:
        """See :class:`~headrace.transport.queue.ActorPort`."""
        orders, self._orders = self._orders, []
        return orders

    def acquire(self, timeout_s: float) -> int | None:
        """See :class:`~headrace.transport.queue.ActorPort`; None also when the learner died."""
        try:
            while self._pipe.poll(timeout_s):
                message = self._pipe.recv_bytes()
                slot = int(_NUMBER.unpack(message[: _NUMBER.size])[0])
                if slot != _ORDER:
                    return slot
                self._orders.append(message[_NUMBER.size :])
            raise TimeoutError(f"the learner released no slot for {timeout_s:g} s")
        except (EOFError, ConnectionResetError):
            return None

    def commit(self, slot: int, told: bytes = b"") -> None:
        """Hand a filled slot to the learner; if it is gone, the next ``acquire`` says so."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send_bytes(_NUMBER.pack(slot) + told)

    def fail(self, traceback: str) -> None:
        """Tell the learner why this actor ends."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(_NUMBER.pack(_FAILED) + traceback.encode())

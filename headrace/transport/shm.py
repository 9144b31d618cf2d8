"""Transports rollouts through shared memory; one pipe per actor carries slot numbers.

    actor a                                       learner
      acquire   <---- slot number, pipe a ------  release / connect
      (fills the slot in shared memory)
      commit    ----- slot number, pipe a ----->  take

    actor    produces: filled slots    waits for: a slot number    unblocked by: release, close
    learner  produces: free slots      waits for: slot numbers     unblocked by: commit, death

The learner writes to a slot's header before it sends the slot's number back. No lock is shared, so
a process may be killed at any instant: its pipe closes, which the learner treats as its death. A
slot counts as filled only when its number has arrived.
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
_FAILED = -1  # in place of a slot's number: the actor's error follows
_ORDER = -2  # likewise: an environment change from the learner follows
_LONGEST_S = 1e9
MAX_OPEN = 128  # open slots per actor; their numbers must fit in its pipe (277 do on Linux)


class ShmQueue:
    """Learner's end of the queue, for actors in other processes of this machine.

    Args:
        timeout_s: longest wait for an actor that doesn't read its full pipe, in seconds.
    """

    def __init__(self, slots: Slots, timeout_s: float = 300.0) -> None:
        self.slots, self._timeout_s = slots, timeout_s
        self.unresponsive: set[int] = (
            set()
        )  # actors that didn't read in time; they are sent nothing more
        self._pipes: dict[int, Connection] = {}
        self._last_words: dict[int, str] = {}  # tracebacks whose pipe has not ended yet
        self._grant()

    def connect(self, actor: int) -> Connection:
        """Create an actor's pipe with all of its open slots in it; return the actor's end."""
        if actor in self._pipes:
            raise ValueError(f"actor {actor} is connected already")
        ours, theirs = Pipe()
        _bound_sends(ours, self._timeout_s)
        self._pipes[actor] = ours
        self.unresponsive.discard(actor)
        self.slots.forget(actor)
        for slot in self.slots.open(actor):
            self._send(actor, slot)
        return theirs

    def _grant(self) -> None:
        while (slot := self.slots.grant()) is not None:
            self._send(self.slots.owner(slot), slot)

    def _send(self, actor: int, slot: int, rest: bytes = b"") -> None:
        pipe = self._pipes.get(actor)
        if pipe is None or actor in self.unresponsive:  # connect() sends it
            return
        try:
            pipe.send_bytes(_NUMBER.pack(slot) + rest)
        except BlockingIOError:  # part of it may have been sent
            self.unresponsive.add(actor)
        except (BrokenPipeError, ConnectionResetError):
            pass  # take() reports it

    def order(self, text: bytes) -> None:
        """Send an environment change to all connected actors, before their next slots."""
        for actor in self._pipes:
            self._send(actor, _ORDER, text)

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        return self.slots.wait(count, timeout_s, self._receive_any, task)

    def _receive_any(self, timeout_s: float) -> None:
        ready = wait(list(self._pipes.values()), timeout=timeout_s)
        for actor in [a for a, pipe in self._pipes.items() if pipe in ready]:
            self._receive(actor)
        self._grant()  # slots withheld by MAX_OPEN

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
            self.slots.lost += bool(self.slots.open(actor))  # actors fill one slot at a time
            raise PeerDied(actor, self._last_words.pop(actor, "")) from None

    def release(self, slots: list[int]) -> None:
        for slot in slots:
            self.slots.release(slot)
        self._grant()

    def close(self) -> None:
        """Close every pipe, so that waiting actors wake up and exit."""
        for pipe in self._pipes.values():
            pipe.close()
        self._pipes.clear()


def _bound_sends(pipe: Connection, timeout_s: float) -> None:
    """Set a timeout after which sends through one end of a pipe raise BlockingIOError."""
    whole, rest = divmod(min(max(timeout_s, 1e-6), _LONGEST_S), 1.0)
    limit = struct.pack("@ll", int(whole), int(rest * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as end:
        end.setblocking(True)  # regardless of socket.setdefaulttimeout
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


class ShmPort:
    """Actor's end, in its process, of the pipe from :meth:`ShmQueue.connect`."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._orders: list[bytes] = []

    def orders(self) -> list[bytes]:
        """See :class:`~headrace.transport.queue.ActorPort`."""
        orders, self._orders = self._orders, []
        return orders

    def acquire(self, timeout_s: float) -> int | None:
        """See :class:`~headrace.transport.queue.ActorPort`; None also if the learner died."""
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

    def commit(self, slot: int, message: bytes = b"") -> None:
        """Deliver a filled slot to the learner; a dead learner is detected by ``acquire``."""
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._pipe.send_bytes(_NUMBER.pack(slot) + message)

    def fail(self, traceback: str) -> None:
        """Send the learner the traceback that stops this actor."""
        with contextlib.suppress(OSError):
            self._pipe.send_bytes(_NUMBER.pack(_FAILED) + traceback.encode())

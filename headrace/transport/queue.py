"""What every transport of rollouts offers, and the header in front of each slot."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Header(NamedTuple):
    """What travels beside a slot's tree, all int64."""

    actor: int  # who filled it
    sequence: int  # how many that actor had committed before
    version: int  # of the weights that acted
    valid_steps: int  # transitions in it, fillers left out
    committed_ns: int  # monotonic clock at commit
    acting_ns: int  # time it took to fill
    waiting_ns: int  # time the actor waited for the slot
    pulled: int = 0  # 1: the actor had copied weights just before, 0: it had not
    lag: int = -1  # gradients of others behind, where the actor learns; -1: it doesn't
    divergence_nano: int = -1  # see ``divergence``, 1e-9 nats; -1: not known
    stepping_ns: int = 0  # part of acting_ns in which environments were stepped or waited for

    @property
    def divergence(self) -> float | None:
        """KL(behaviour || learner) on what the slot held, nats; None: not known.

        It is the one number that goes back: who fills the slot next finds it there.
        """
        return self.divergence_nano * 1e-9 if self.divergence_nano >= 0 else None


NUM_HEADER_FIELDS = len(Header._fields)
_MAX_NATS = 1e6  # what is beyond, infinity too, reads as this


def read_header(row: np.ndarray) -> Header:
    """The header stored in an int64 row."""
    return Header(*map(int, row))


def nano(nats: float) -> int:
    """A divergence of 0 or more nats as a whole number of 1e-9 nats that fits a header."""
    return round(min(nats, _MAX_NATS) * 1e9)


class PeerDied(Exception):
    """An actor ended.

    Args:
        traceback: its own, empty when it was killed.
        cause: in a line, where the transport knows; begun: it had made its environments.
    """

    def __init__(self, actor: int, traceback: str, cause: str = "", begun: bool = True) -> None:
        super().__init__(actor, traceback, cause, begun)
        self.actor, self.traceback, self.cause, self.begun = actor, traceback, cause, begun


class ActorPort(Protocol):
    """The actor's end: ``acquire`` a slot, fill it, ``commit`` it."""

    def acquire(self, timeout_s: float) -> int | None:
        """The next free slot; None when the learner has closed the queue.

        Raises:
            TimeoutError: none came free in time; the message names the learner.
        """

    def commit(self, slot: int, told: bytes = b"") -> None:
        """Hand a filled slot to the learner, with a message (JSON, may be empty)."""

    def orders(self) -> list[bytes]:
        """The learner's orders since the last call that precede the latest slot, in order."""


class RolloutQueue(Protocol):
    """The learner's end: ``take`` filled slots, ``release`` them when done."""

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """``count`` filled slots of a task, as ``Slots.take`` hands them out.

        Raises:
            TimeoutError: too few came in time; the message names the silent actors.
            PeerDied: an actor ended; raised once per death, before the timeout.
        """

    def release(self, slots: list[int]) -> None:
        """Give slots back to the actors that own them; their headers go back with them."""

    def close(self) -> None:
        """Wake every actor and forget the slots; may be called twice."""

"""Interface of rollout transports, and the header in front of each slot."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np


class Header(NamedTuple):
    """Metadata of a rollout in a slot, all int64."""

    actor: int  # index of the actor that filled the slot
    sequence: int  # rollouts that the actor committed before
    version: int  # version of the weights that acted
    valid_steps: int  # transitions without fillers
    committed_ns: int  # monotonic clock at commit
    acting_ns: int  # time it took to fill
    waiting_ns: int  # time the actor waited for the slot
    pulled: int = 0  # 1: the actor pulled weights just before
    lag: int = -1  # gradients of other actors behind, if actors compute them; -1: they don't
    divergence_nano: int = -1  # see ``divergence``, 1e-9 nats; -1: unknown
    stepping_ns: int = 0  # part of acting_ns for stepping or waiting for environments

    @property
    def divergence(self) -> float | None:
        """KL(behaviour || learner) of the slot's rollout in nats; None if unknown.

        The learner writes it, and the actor reads it when the slot returns.
        """
        return self.divergence_nano * 1e-9 if self.divergence_nano >= 0 else None


NUM_HEADER_FIELDS = len(Header._fields)
_MAX_NATS = 1e6  # larger values, including infinity, are clamped


def read_header(row: np.ndarray) -> Header:
    """Return the header stored in an int64 row."""
    return Header(*map(int, row))


def nano(nats: float) -> int:
    """Convert a divergence of 0 or more nats to a whole number of 1e-9 nats."""
    return round(min(nats, _MAX_NATS) * 1e9)


class PeerDied(Exception):
    """Raised when an actor died.

    Args:
        traceback: traceback of the actor, empty if it was killed.
        cause: cause in one line, if the transport knows it.
        begun: the actor had made its environments.
    """

    def __init__(self, actor: int, traceback: str, cause: str = "", begun: bool = True) -> None:
        super().__init__(actor, traceback, cause, begun)
        self.actor, self.traceback, self.cause, self.begun = actor, traceback, cause, begun


class ActorPort(Protocol):
    """Actor's end of a queue: ``acquire`` a slot, fill it, ``commit`` it."""

    def acquire(self, timeout_s: float) -> int | None:
        """Return the next free slot, or None if the learner has closed the queue.

        Raises:
            TimeoutError: no slot became free in time; the message names the learner.
        """

    def commit(self, slot: int, message: bytes = b"") -> None:
        """Deliver a filled slot to the learner, with a JSON message that may be empty."""

    def orders(self) -> list[bytes]:
        """Return environment changes sent before the latest slot, since the last call, in order."""


class RolloutQueue(Protocol):
    """Learner's end of a queue: ``take`` filled slots, ``release`` them when done."""

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """Take ``count`` filled slots of a task, in the order of ``Slots.take``.

        Raises:
            TimeoutError: too few arrived in time; the message names the silent actors.
            PeerDied: an actor died; raised once per death, before the timeout.
        """

    def release(self, slots: list[int]) -> None:
        """Return slots, with their headers, to the actors that own them."""

    def close(self) -> None:
        """Wake every actor and forget the slots; safe to call twice."""

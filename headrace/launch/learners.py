"""Interface of learner processes, their states, and the cause of a lost learner."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Protocol

from headrace.errors import (
    CheckpointError,
    ConfigError,
    EnvironmentFault,
    EnvironmentLost,
    HeadraceError,
    LearnerFailed,
    NonFinite,
    OthersLost,
)

# A restart would fail in the same way, except after an EnvironmentLost.
_FATAL = (ConfigError, CheckpointError, NonFinite, EnvironmentFault)


class Learners(Protocol):
    """Processes of one generation of learners, which run ``headrace.launch.learner.learn``."""

    def receive(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
        """Return (rank, message) pairs, after waiting for one; ``gone``: the process exited.

        Raises:
            HeadraceError: neither these nor new learners can run.
        """

    def send(self, rank: int, command: str, *arguments: Any) -> None:
        """Call a method of a learner's trainer, unless the learner has exited."""

    def name(self, rank: int) -> str:
        """Return ``learner 1``, and its location unless that is this machine."""

    def how_ended(self, rank: int) -> str:
        """Describe how a process ended."""

    def pids(self) -> list[int]:
        """Return the process ids by rank, each on its machine."""

    def wait(self, timeout_s: float) -> None:
        """Wait for the exit of learners that are done, up to ``timeout_s`` for each."""

    def close(self) -> None:
        """Kill the processes, and their actors with them; safe to call twice."""


@dataclasses.dataclass
class LearnerState:
    """State of one learner as known from its messages."""

    last_message: float  # time of its last message
    done: bool = False
    gone: bool = False
    failure: HeadraceError | None = None
    traceback: str = ""


def lost_ranks(states: Sequence[LearnerState], listened_at: float, timeout_s: float) -> list[int]:
    """Return the ranks that failed, exited, or have been silent for too long.

    Args:
        states: learners, by rank.
        listened_at: time at which messages were last received.
        timeout_s: longest silence in seconds (``learner_timeout_s``).
    """
    ranks = []
    for rank, one in enumerate(states):
        gone = one.gone or listened_at - one.last_message > timeout_s
        if not one.done and (gone or one.failure is not None):
            ranks.append(rank)
    return ranks


def cause(
    states: Sequence[LearnerState], learners: Learners, lost: Sequence[int], timeout_s: float
) -> HeadraceError:
    """Return the failure that most likely caused the others.

    Args:
        states, timeout_s: see :func:`lost_ranks`.
        learners: their processes, for names and exit codes.
        lost: ranks that are lost, at least one.
    """
    failures = [one.failure for one in states if one.failure is not None]
    for rank, one in enumerate(states):
        if isinstance(one.failure, _FATAL) and not isinstance(one.failure, EnvironmentLost):
            here = f"{learners.name(rank)}: " if rank else ""
            return type(one.failure)(f"{here}{one.failure}")
    for rank, one in enumerate(states):
        if one.failure is not None and not isinstance(one.failure, OthersLost):
            trace = f"\n\nIts traceback:\n{one.traceback.rstrip()}"
            return LearnerFailed(f"{learners.name(rank)} failed: {one.failure}{trace}")
    for rank, one in enumerate(states):
        if one.gone and not one.done and one.failure is None:
            return LearnerFailed(f"{learners.name(rank)} {learners.how_ended(rank)}")
    for rank in lost:
        if states[rank].failure is None:
            silent = f"{timeout_s:g} s (learner_timeout_s)"
            return LearnerFailed(f"{learners.name(rank)} was silent for {silent}")
    return failures[0]

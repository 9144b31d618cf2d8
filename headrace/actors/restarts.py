"""Passes errors of actors to the learner, and decides which actors are restarted."""

from __future__ import annotations

import traceback
from typing import TYPE_CHECKING

from headrace.errors import (
    ActorFailed,
    ChangeFailed,
    HeadraceError,
    NonFinite,
    StacksChanged,
    bounded,
)
from headrace.processes.restarts import Death, RestartPolicy

if TYPE_CHECKING:
    from headrace.transport.queue import PeerDied

NOT_FINITE = "not finite: "  # prefix of such an error from an actor
STACKS = "stacks changed: "  # likewise
CHANGE = "change failed: "  # likewise; the change's id and a space follow
_CAUSE = 2000  # limit of a cause in messages, in characters


def last_words(error: BaseException) -> str:
    """Format the exception that stops an actor, for :meth:`Restarts.judge`."""
    if isinstance(error, NonFinite):
        return f"{NOT_FINITE}{error}"
    if isinstance(error, StacksChanged):
        return f"{STACKS}{error}"
    if isinstance(error, ChangeFailed):
        return f"{CHANGE}{error.change} {error}"
    is_ours = isinstance(error, HeadraceError)
    return bounded(str(error) if is_ours else "".join(traceback.format_exception(error)))


def silence(timeout_s: float) -> str:
    """Return the cause of death of an actor that was killed after ``actor_timeout_s``."""
    return f"killed because it delivered nothing for {timeout_s:g} s (actor_timeout_s)"


def counted(number: int, unit: str) -> str:
    """Return ``1 rollout`` or ``2 rollouts``."""
    return f"{number} {unit}{'' if number == 1 else 's'}"


class Restarts:
    """Restarts a learner's actors, and the process that acts for them, within one limit.

    Args:
        limit: value of ``max_restarts``.
    """

    def __init__(self, limit: int) -> None:
        self.policy = RestartPolicy(limit, ActorFailed)

    @property
    def count(self) -> int:
        """Number of all restarts, even if they are not counted against the limit."""
        return self.policy.count

    def judge(self, death: PeerDied, delivered: int, name: str = "", node: str = "") -> str:
        """Count one more restart of an actor; return a line about it.

        Args:
            delivered: rollouts that the actor delivered before its death.
            name: name of the actor; "": its number.
            node: node of the actor; "": this machine.

        Raises:
            ActorFailed: the policy refuses (:meth:`RestartPolicy.restart`).
            NonFinite: the policy's output wasn't finite; a restarted actor would fail as well.
            StacksChanged: its images can't be stored in the format that this run uses.
            ChangeFailed: its environments can't be changed as a callback requested.
        """
        _raise_if_lasting(death.traceback)
        trace = death.traceback.strip()
        return self.policy.restart(
            Death(
                key=f"actor {death.actor}",
                name=name or f"actor {death.actor}",
                cause=bounded(trace.splitlines()[-1], _CAUSE) if trace else death.cause,
                traceback=trace,
                work=counted(delivered, "rollout"),
                began=death.begun,
                host=node,
            )
        )


def _raise_if_lasting(message: str) -> None:
    """Raise errors that every restarted actor would raise again."""
    if message.startswith(NOT_FINITE):  # caused by the policy, not the actor
        raise NonFinite(message.removeprefix(NOT_FINITE))
    if message.startswith(STACKS):
        raise StacksChanged(message.removeprefix(STACKS))
    if message.startswith(CHANGE):
        change, _, words = message.removeprefix(CHANGE).partition(" ")
        raise ChangeFailed(words, change)

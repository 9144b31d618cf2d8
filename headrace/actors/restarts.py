"""Decides which dead actors are restarted, and formats the messages about them."""

from __future__ import annotations

import math
import time
import traceback

from headrace.errors import ActorFailed, ChangeFailed, HeadraceError, NonFinite, StacksChanged
from headrace.transport.queue import PeerDied

NOT_FINITE = "not finite: "  # prefix of such an error from an actor
STACKS = "stacks changed: "  # likewise
CHANGE = "change failed: "  # likewise; the change's id and a space follow
_BURST_S = 60.0  # period in which deaths of actors on a lost node count as one
HUNG = "killed because it delivered nothing in time"


def last_words(error: BaseException) -> str:
    """Format the exception that stops an actor, for :meth:`Restarts.judge`."""
    if isinstance(error, NonFinite):
        return f"{NOT_FINITE}{error}"
    if isinstance(error, StacksChanged):
        return f"{STACKS}{error}"
    if isinstance(error, ChangeFailed):
        return f"{CHANGE}{error.change} {error}"
    is_ours = isinstance(error, HeadraceError)
    return str(error) if is_ours else "".join(traceback.format_exception(error))


class Restarts:
    """Counts the restarts of a learner's actors, at most ``most``.

    Actors that die with their node, each for the first time within a minute, count once.
    """

    def __init__(self, most: int) -> None:
        self.count, self._most = (
            0,
            most,
        )  # every restart, even if it is not counted against the limit
        self._used = 0
        self._bursts: dict[str, tuple[float, set[int]]] = {}  # by node: start time and actors
        self._last: dict[int, tuple[str, int]] = {}  # by actor: error and rollouts before it

    def judge(self, death: PeerDied, delivered: int, name: str = "", node: str = "") -> str:
        """Count one more restart; return a line about it.

        The first occurrence of an error is reported with its traceback.

        Args:
            delivered: rollouts that the actor delivered before its death.
            name: name of the actor; "": its number.
            node: node of the actor; "": this machine.

        Raises:
            ActorFailed: ``max_restarts`` is used up, or the actor failed like its predecessor after
                equally many rollouts; includes the actor's traceback.
            NonFinite: the policy's output wasn't finite; a restarted actor would fail as well.
            StacksChanged: its images can't be stored in the format that this run uses.
            ChangeFailed: its environments can't be changed as a callback requested.
        """
        traceback_text, cause, name = (
            death.traceback.strip(),
            death.cause,
            name or f"actor {death.actor}",
        )
        if death.traceback.startswith(NOT_FINITE):  # caused by the policy, not the actor
            raise NonFinite(death.traceback.removeprefix(NOT_FINITE))
        if death.traceback.startswith(STACKS):  # every actor will fail in the same way
            raise StacksChanged(death.traceback.removeprefix(STACKS))
        if death.traceback.startswith(CHANGE):  # likewise
            change, _, words = death.traceback.removeprefix(CHANGE).partition(" ")
            raise ChangeFailed(words, change)
        cause = traceback_text.splitlines()[-1] if traceback_text else cause
        known_errors = [words for words, _ in self._last.values()]
        # An actor that could not make its environments may succeed at the next try.
        again = (
            bool(traceback_text)
            and death.begun
            and self._last.get(death.actor) == (cause, delivered)
        )
        counts = bool(traceback_text) or self._is_first(death.actor, node)
        if again or (counts and self._used >= self._most):
            after = f"{delivered} rollout{'' if delivered == 1 else 's'}"
            why = f"max_restarts={self._most} restarts are used up"
            if again:
                why = f"its predecessor failed in the same way after {after}, so it isn't restarted"
            raise ActorFailed(
                f"{name} {'failed: ' if traceback_text else 'was ' if cause == HUNG else ''}"
                f"{cause.rstrip('.')}; {why}"
                + (f"\n\nIts traceback:\n{traceback_text}" if "\n" in traceback_text else "")
            )
        self._last[death.actor] = cause, delivered
        self.count += 1
        self._used += counts
        line = f"{name}: {cause} (restart {self._used}/{self._most})"
        return (
            f"{traceback_text}\n{line}"
            if "\n" in traceback_text and cause not in known_errors
            else line
        )

    def _is_first(self, actor: int, node: str) -> bool:
        """Return True unless this is a further death on a node that was lost recently."""
        now = time.monotonic()
        since, actors = self._bursts.get(node, (-math.inf, set()))
        if node and now - since <= _BURST_S and actor not in actors:
            actors.add(actor)
            return False
        self._bursts[node] = now, {actor}
        return True

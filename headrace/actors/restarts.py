"""Deaths of actors: which are made good, and what is told of them."""

from __future__ import annotations

import math
import time
import traceback

from headrace.errors import ActorFailed, ChangeFailed, HeadraceError, NonFinite, StacksChanged
from headrace.transport.queue import PeerDied

NOT_FINITE = "not finite: "  # before what such an error of an actor says
STACKS = "stacks changed: "  # likewise
CHANGE = "change failed: "  # likewise; the change's id and a space follow
_BURST_S = 60.0  # within which the actors of a lost node are seen to have died
HUNG = "was killed because it delivered nothing in time"


def last_words(error: BaseException) -> str:
    """What an actor says of the exception that ends it, for :meth:`Restarts.judge`."""
    if isinstance(error, NonFinite):
        return f"{NOT_FINITE}{error}"
    if isinstance(error, StacksChanged):
        return f"{STACKS}{error}"
    if isinstance(error, ChangeFailed):
        return f"{CHANGE}{error.change} {error}"
    told = isinstance(error, HeadraceError)
    return str(error) if told else "".join(traceback.format_exception(error))


class Restarts:
    """How often actors of a learner were replaced, at most ``most`` times.

    Actors that a node takes with it, each for the first time within a minute, count once.
    """

    def __init__(self, most: int) -> None:
        self.count, self._most = 0, most  # all of them are counted, not all count
        self._used = 0
        self._bursts: dict[str, tuple[float, set[int]]] = {}  # by node: since when, and who
        self._last: dict[int, tuple[str, int]] = {}  # by actor: error, and rollouts before it

    def judge(self, death: PeerDied, delivered: int, name: str = "", node: str = "") -> str:
        """Count one more; returns a line that says so.

        What an actor raised is told with its traceback the first time.

        Args:
            delivered: rollouts before it.
            name: of the actor; "": its number. node: where it was; "": on this machine.

        Raises:
            ActorFailed: ``max_restarts`` is used up, or it failed as its predecessor did, at the
                same point of its life; carries the actor's own traceback.
            NonFinite: what it computed wasn't finite, which another one would compute, too.
            StacksChanged: its images can't be stored in the way that this run uses.
            ChangeFailed: its environments can't be changed as a callback wants.
        """
        said, cause, name = death.traceback.strip(), death.cause, name or f"actor {death.actor}"
        if death.traceback.startswith(NOT_FINITE):  # no fault of the actor's
            raise NonFinite(death.traceback.removeprefix(NOT_FINITE))
        if death.traceback.startswith(STACKS):  # every actor will run into it
            raise StacksChanged(death.traceback.removeprefix(STACKS))
        if death.traceback.startswith(CHANGE):  # likewise
            change, _, words = death.traceback.removeprefix(CHANGE).partition(" ")
            raise ChangeFailed(words, change)
        cause = said.splitlines()[-1] if said else cause
        known = [words for words, _ in self._last.values()]
        # One without environments yet may find its place free at another try.
        again = bool(said) and death.begun and self._last.get(death.actor) == (cause, delivered)
        counts = bool(said) or self._is_first(death.actor, node)
        if again or (counts and self._used >= self._most):
            after = f"{delivered} rollout{'' if delivered == 1 else 's'}"
            why = f"max_restarts={self._most} restarts are used up"
            if again:
                why = f"its predecessor failed in the same way after {after}, so it isn't restarted"
            raise ActorFailed(
                f"{name} {'failed: ' if said else ''}{cause.rstrip('.')}; {why}"
                + (f"\n\nIts traceback:\n{said}" if "\n" in said else "")
            )
        self._last[death.actor] = cause, delivered
        self.count += 1
        self._used += counts
        line = f"{name}: {cause} (restart {self._used}/{self._most})"
        return f"{said}\n{line}" if "\n" in said and cause not in known else line

    def _is_first(self, actor: int, node: str) -> bool:
        """Whether nothing of its node has died of late, or it has already."""
        now = time.monotonic()
        since, actors = self._bursts.get(node, (-math.inf, set()))
        if node and now - since <= _BURST_S and actor not in actors:
            actors.add(actor)
            return False
        self._bursts[node] = now, {actor}
        return True

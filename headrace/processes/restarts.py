"""Decides which dead processes are restarted, and formats the messages about them."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from headrace.errors import HeadraceError

_BURST_S = 60.0  # period in which deaths on a lost host count as one


@dataclass(frozen=True)
class Death:
    """Cause and circumstances of a process's death.

    Args:
        key: identifies the process and its replacements.
        name: name of the process in messages.
        cause: cause in one line.
        traceback: its last message; empty if it sent none.
        work: what it and its predecessors completed, such as "2 rollouts"; "": unknown.
        began: it had finished starting.
        host: the host that was lost with it; "": none.
    """

    key: str
    name: str
    cause: str
    traceback: str = ""
    work: str = ""
    began: bool = True
    host: str = ""


class RestartPolicy:
    """Allows ``limit`` restarts, and none of a process that would fail again.

    A process isn't restarted if it reported the same error as its predecessor after the same work.
    Processes that die with their host, each for the first time within a minute, count once.

    Args:
        limit: value of ``max_restarts``.
        error: type of the error that refuses a restart.
        unstarted: also restart processes that didn't finish starting.
    """

    def __init__(self, limit: int, error: type[HeadraceError], unstarted: bool = True) -> None:
        self._limit, self._error, self._unstarted = limit, error, unstarted
        self.count = 0  # all restarts, even if they are not counted against the limit
        self._used = 0
        self._bursts: dict[str, tuple[float, set[str]]] = {}  # by host: start time, processes
        self._last: dict[str, tuple[str, str]] = {}  # by process: cause and work of its last death

    def restart(self, death: Death) -> str:
        """Count a restart; return a line about it, and the traceback if the cause is new.

        Raises:
            HeadraceError: of the policy's type, with the traceback; no restart is allowed.
        """
        counts = bool(death.traceback) or self._is_first_on(death.host, death.key)
        traceback = death.traceback.strip() if "\n" in death.traceback.strip() else ""
        if reason := self._refusal(death, counts):
            text = f"{death.name}: {death.cause.rstrip('.')}; {reason}"
            raise self._error(text + (f"\n\nIts traceback:\n{traceback}" if traceback else ""))
        is_new = death.cause not in {cause for cause, _ in self._last.values()}
        self._last[death.key] = death.cause, death.work
        self.count += 1
        self._used += counts
        line = f"{death.name}: {death.cause} (restart {self._used}/{self._limit})"
        return f"{line}\n{traceback}" if traceback and is_new else line

    def _refusal(self, death: Death, counts: bool) -> str:
        """Return the reason why a process isn't restarted; "" if it is."""
        if not death.began and not self._unstarted:
            return "it never came up"
        repeats = self._last.get(death.key) == (death.cause, death.work)
        if death.traceback and death.began and death.work and repeats:
            return (
                f"its predecessor failed in the same way after {death.work}, so it isn't restarted"
            )
        if counts and self._used >= self._limit:
            return f"max_restarts={self._limit} restarts are used up"
        return ""

    def _is_first_on(self, host: str, key: str) -> bool:
        """Return True unless this is a further death on a host that was lost recently."""
        now = time.monotonic()
        since, keys = self._bursts.get(host, (-math.inf, set()))
        if host and now - since <= _BURST_S and key not in keys:
            keys.add(key)
            return False
        self._bursts[host] = now, {key}
        return True

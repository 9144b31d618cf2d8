"""Several processes of a test, with their messages and endings."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
from patience import PATIENCE_S, wait_until

from headrace.actors.fleet import start_fork_server
from headrace.distributed import ranks as ranks_module
from headrace.distributed.ranks import Ranks, file_rendezvous
from headrace.processes import Child, end_children

Say = Callable[[Any], None]
LONG_S = 2 * PATIENCE_S  # a timeout that a test doesn't reach


@dataclass(frozen=True)
class Ending:
    """Ending of a rank: a value or an error, and the time (``time.monotonic()``)."""

    value: Any
    error: Exception | None
    at: float


class Crew:
    """Processes that each run ``work(rank, say)``.

    Args:
        ranks: one process each. work: pickled by value.
    """

    def __init__(self, ranks: Iterable[int], work: Callable[[int, Say], Any]) -> None:
        start_fork_server()
        self.ranks = list(ranks)
        pickled = cloudpickle.dumps(work)
        self._children = {
            rank: Child(f"rank-{rank}", _live, rank, pickled, nice=False) for rank in self.ranks
        }

    def hear(self, rank: int, timeout_s: float = PATIENCE_S) -> Any:
        """Return the next message of a rank, or its Ending."""
        pipe = self._children[rank].pipe
        assert pipe.poll(timeout_s), f"rank {rank} said nothing for {timeout_s} s"
        return pipe.recv()

    def endings(self, ranks: Iterable[int] | None = None) -> dict[int, Ending]:
        """Return the endings of these ranks (all by default)."""
        return {rank: self.hear(rank) for rank in (self.ranks if ranks is None else ranks)}

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal. Return the time (``time.monotonic()``)."""
        os.kill(self._children[rank].pid, number)
        return time.monotonic()

    def end(self) -> None:
        """Kill the remaining processes."""
        end_children(self._children.values(), timeout_s=0.0)


def _live(rank: int, work: bytes, pipe: Connection) -> None:
    value, error = None, None
    try:
        value = cloudpickle.loads(work)(rank, pipe.send)
    except Exception as problem:
        error = problem
        error.__cause__ = None  # it may not be picklable
    pipe.send(Ending(value, error, time.monotonic()))


def be_patient() -> None:
    """Let live ranks of this process's groups report lost ones later, on a busy machine."""
    ranks_module._BLAME_S = 3.0


def arrive(rank: int, folder: Path, count: int) -> None:
    """Wait until this number of ranks have started, however long that takes."""
    (folder / f"arrived-{rank}").touch()
    wait_until(lambda: len(list(folder.glob("arrived-*"))) == count)


def in_group(
    rank: int,
    say: Say,
    path: str,
    size: int,
    work: Callable[[Ranks, Say], Any],
    before: Callable[[int], None] | None = None,
    timeout_s: float = LONG_S,
) -> Any:
    """Join a group whose store is the file ``path``, and run ``work(group, say)``.

    Args:
        before: called with the rank before it joins. timeout_s: of the group.
    """
    if before is not None:
        before(rank)
    be_patient()
    group = Ranks(file_rendezvous(path, rank, size), timeout_s)
    value = work(group, say)
    group.close()
    return value

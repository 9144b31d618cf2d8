"""Several processes of a test, what each of them says, and how each of them ends."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

import cloudpickle
import torch

from headrace.acting.fleet import start_fork_server
from headrace.distributed.ranks import Ranks, file_rendezvous
from headrace.process import die_with_parent, main_hidden, process_context

Say = Callable[[Any], None]


@dataclass(frozen=True)
class Ending:
    """How a rank ended: with a value or an error, and when (``time.monotonic()``)."""

    value: Any
    error: Exception | None
    at: float


class Crew:
    """Processes that each do ``work(rank, say)``.

    Args:
        ranks: of which there is one each. work: pickled by value.
    """

    def __init__(self, ranks: Iterable[int], work: Callable[[int, Say], Any]) -> None:
        start_fork_server()
        self.ranks = list(ranks)
        self._processes: dict[int, BaseProcess] = {}
        self._pipes: dict[int, Connection] = {}
        pickled = cloudpickle.dumps(work)
        for rank in self.ranks:
            self._pipes[rank], theirs = Pipe()
            process = process_context().Process(  # type: ignore[attr-defined]
                target=_live, args=(rank, pickled, theirs), daemon=True
            )
            with main_hidden():
                process.start()
            theirs.close()
            self._processes[rank] = process

    def hear(self, rank: int, timeout_s: float = 20.0) -> Any:
        """The next thing that a rank says, or its Ending."""
        assert self._pipes[rank].poll(timeout_s), f"rank {rank} said nothing for {timeout_s} s"
        return self._pipes[rank].recv()

    def endings(self, ranks: Iterable[int] | None = None) -> dict[int, Ending]:
        """How these ranks (all by default) end."""
        return {rank: self.hear(rank) for rank in (self.ranks if ranks is None else ranks)}

    def signal(self, rank: int, number: signal.Signals) -> float:
        """Send a signal; returns when (``time.monotonic()``)."""
        os.kill(self._processes[rank].pid or 0, number)
        return time.monotonic()

    def end(self) -> None:
        """Kill whatever is left of them."""
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.join(10)


def _live(rank: int, work: bytes, pipe: Connection) -> None:
    die_with_parent()
    torch.set_num_threads(1)
    value, error = None, None
    try:
        value = cloudpickle.loads(work)(rank, pipe.send)
    except Exception as problem:
        error = problem
        error.__cause__ = None  # it may not be picklable
    pipe.send(Ending(value, error, time.monotonic()))


def in_group(
    rank: int,
    say: Say,
    path: str,
    size: int,
    work: Callable[[Ranks, Say], Any],
    before: Callable[[int], None] | None = None,
    timeout_s: float = 30.0,
) -> Any:
    """Join a group whose store is the file ``path``, and do ``work(group, say)``.

    Args:
        before: called with the rank before it joins. timeout_s: of the group.
    """
    if before is not None:
        before(rank)
    group = Ranks(file_rendezvous(path, rank, size), timeout_s)
    value = work(group, say)
    group.close()
    return value

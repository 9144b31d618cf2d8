"""Several learners in one process, one thread each."""

from __future__ import annotations

import copy
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from patience import PATIENCE_S
from torch import Tensor

from headrace.types import Clock

T = TypeVar("T")


class Meeting:
    """Shared state of the learners of a group.

    Args:
        size: number of learners. timeout_s: limit of every wait.
    """

    def __init__(self, size: int, timeout_s: float = PATIENCE_S) -> None:
        self.size, self._timeout_s = size, timeout_s
        self._barrier = threading.Barrier(size, timeout=timeout_s)
        self._calls: list[Any] = [None] * size  # (kind, value) of each learner
        self._news = threading.Condition()
        self._broken = False
        self.told: list[Any] = []  # by rank 0
        self.turn = 0
        self.notes = [-1] * size

    def exchange(self, rank: int, kind: Any, value: Any, read: Callable[[list[Any]], T]) -> T:
        """Return what ``read`` makes of all learners' values, while none of them continues.

        Raises:
            AssertionError: the learners' calls are not of the same kind.
            BrokenBarrierError: a learner was late or failed.
        """
        self._calls[rank] = kind, value
        self._barrier.wait()
        kinds = [kind for kind, _ in self._calls]
        assert kinds.count(kind) == self.size, f"different calls meet: {kinds}"
        result = read([value for _, value in self._calls])
        self._barrier.wait()
        return result

    def wait(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition that :meth:`change` causes."""
        with self._news:
            self._news.wait_for(lambda: self._broken or condition(), self._timeout_s)
            if self._broken or not condition():
                raise threading.BrokenBarrierError

    @contextmanager
    def change(self) -> Iterator[None]:
        """Change ``told`` or ``turn`` inside the block."""
        with self._news:
            yield
            self._news.notify_all()

    def abort(self) -> None:
        """Let all waits of all learners fail."""
        self._barrier.abort()
        with self.change():
            self._broken = True


class ThreadGroup:
    """One learner's end, see :class:`headrace.types.Group`. Objects are passed as copies."""

    def __init__(self, rank: int, meeting: Meeting) -> None:
        self.rank, self.size, self.local_rank = rank, meeting.size, rank
        self.clock = Clock()
        self._meeting, self._num_told = meeting, 0

    def sum(self, values: Tensor) -> Tensor:
        """Sum in the order of ranks. ``values`` become NaN, since they may be overwritten."""
        result = self._timed("sum", values, lambda rows: functools.reduce(torch.add, rows))
        if self.size == 1:
            return values
        values.fill_(torch.nan)
        return result

    def gather(self, values: Tensor) -> Tensor:
        """Return the values of all ranks, ``[W, n]``."""
        return self._timed("gather", values, torch.stack)

    def _timed(self, name: str, values: Tensor, read: Callable[[list[Tensor]], Tensor]) -> Tensor:
        assert values.dim() == 1, f"{name} of {list(values.shape)}"
        with self.clock.meeting():
            kind = name, len(values), values.dtype
            return self._meeting.exchange(self.rank, kind, values, read)

    def gather_objects(self, value: Any) -> list[Any]:
        """Return all values on rank 0."""

        def read(values: list[Any]) -> list[Any]:
            return copy.deepcopy(values) if self.rank == 0 else []

        return self._meeting.exchange(self.rank, "collect", value, read)

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value. Rank 0 doesn't wait."""
        at, self._num_told = self._num_told, self._num_told + 1
        if self.rank == 0:
            with self._meeting.change():
                self._meeting.told.append(copy.deepcopy(value))
        self._meeting.wait(lambda: len(self._meeting.told) > at)
        return copy.deepcopy(self._meeting.told[at])

    def note(self, number: int) -> None:
        """Publish a number."""
        self._meeting.notes[self.rank] = number

    def notes(self) -> list[int]:
        """Return the latest numbers."""
        return list(self._meeting.notes)

    def close(self) -> None:
        """Do nothing."""

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        """Enter the block one after the other in the order of ranks; leave it together.

        Torch's global random stream is the same for all threads, so objects that use it, or seed
        from it, are built here. No thread draws from it until all are built.
        """
        meeting = self._meeting
        meeting.wait(lambda: meeting.turn % self.size == self.rank)
        try:
            yield
        finally:
            with meeting.change():
                meeting.turn += 1
                end = -(-meeting.turn // self.size) * self.size
        meeting.wait(lambda: meeting.turn >= end)


def run_learners(
    size: int, function: Callable[[ThreadGroup], T], timeout_s: float = PATIENCE_S
) -> list[T]:
    """Return what ``function(group)`` returned in each of ``size`` threads, by rank.

    Raises:
        the first exception of any of them; the others' waits fail at once.
    """
    meeting = Meeting(size, timeout_s)
    results: dict[int, T] = {}
    failures: list[BaseException] = []

    def work(rank: int) -> None:
        torch.set_num_threads(1)
        try:
            results[rank] = function(ThreadGroup(rank, meeting))
        except BaseException as error:
            failures.append(error)
            meeting.abort()

    threads = [
        threading.Thread(target=work, args=(rank,), name=f"learner-{rank}", daemon=True)
        for rank in range(size)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return [results[rank] for rank in range(size)]

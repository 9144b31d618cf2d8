"""Calls of one process by many through shared memory: rows are asked, rows are answered.

    caller a                                        server
      call    ---- rows in memory; a byte, one pipe --->  take
              <--- rows in memory; a byte, pipe a ------  answer

    caller   produces: rows asked       waits for: its answer   unblocked by: answer, its timeout
    server   produces: rows answered    waits for: calls        unblocked by: calls, ``BEAT_S``

Whose turn it is stands in memory: a byte only wakes somebody. So a process that is killed at any
instant leaves nothing half said: who replaces the server finds every call without an answer, and
who replaces a caller goes on from that one's number, so that no old answer is taken for its own.
"""

from __future__ import annotations

import os
import select
import time
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from headrace.ops import tree
from headrace.transport.slab import ArraySpec, allocate, memory_fence, num_bytes, views

BEAT_S = 0.5  # a server that lives says so as often
MAX_CALLERS = 200  # pipes that a process can be given as it starts
_ASKED, _ANSWERED, _COUNT, _ACTIVE = range(4)


@dataclass(frozen=True)
class Layout:
    """Of the memory of all calls: trees of :class:`ArraySpec` of one row, asked and answered."""

    asked: Any
    answered: Any
    num_callers: int
    num_rows: int  # of one call, at most

    def _spec(self) -> dict[str, Any]:
        rows = self.num_callers * self.num_rows

        def many(row: ArraySpec) -> ArraySpec:
            return ArraySpec((rows, *row.shape), row.dtype)

        return {
            "asked": tree.map_leaves(many, self.asked),
            "answered": tree.map_leaves(many, self.answered),
            "numbers": ArraySpec((self.num_callers, 4), torch.int64),
            "life": ArraySpec((2,), torch.int64),  # monotonic ns, answers
        }

    def allocate(self) -> Tensor:
        """Shared memory for it."""
        return allocate(num_bytes(self._spec()), shared=True)

    def views(self, buffer: Tensor) -> dict[str, Any]:
        """What is in such memory."""
        return views(buffer, self._spec())  # type: ignore[no-any-return]


@dataclass(frozen=True)
class Line:
    """What one caller's process needs; it can be sent to it as it starts."""

    layout: Layout
    buffer: Tensor
    caller: int
    bell: Connection  # the server's, to write to
    woken: Connection  # by the server, to read from


@dataclass(frozen=True)
class Desk:
    """What the server's process needs; it can be sent to it as it starts."""

    layout: Layout
    buffer: Tensor
    bell: Connection  # to read from
    wakes: tuple[Connection, ...]  # by caller, to write to


class Calls:
    """Memory and pipes of all calls, which outlive the processes at either end.

    Args:
        layout: of the calls, with at most ``MAX_CALLERS`` callers.
    """

    def __init__(self, layout: Layout) -> None:
        self._layout, self._buffer = layout, layout.allocate()
        self._life = layout.views(self._buffer)["life"].numpy()
        self._bell = Pipe(duplex=False)
        self._woken = [Pipe(duplex=False) for _ in range(layout.num_callers)]
        self.greet()

    def line(self, caller: int) -> Line:
        """The end of a caller, or of who replaces it."""
        pipes = self._bell[1], self._woken[caller][0]
        return Line(self._layout, self._buffer, caller, *pipes)

    def desk(self) -> Desk:
        """The end of the server, or of who replaces it."""
        wakes = tuple(theirs for _, theirs in self._woken)
        return Desk(self._layout, self._buffer, self._bell[0], wakes)

    def greet(self) -> None:
        """A server starts, which has not answered yet."""
        self._life[:] = time.monotonic_ns(), 0

    @property
    def silent_s(self) -> float:
        """Seconds since the server last said that it lives, which it does between its answers."""
        return (time.monotonic_ns() - int(self._life[0])) * 1e-9

    @property
    def num_answers(self) -> int:
        """Batches that this server has answered."""
        return int(self._life[1])

    def wake(self) -> None:
        """Wake the server, so that it sees what else there is."""
        os.write(self._bell[1].fileno(), b"\0")

    def close(self) -> None:
        """Close all pipes here; safe to call twice."""
        for pipe in (*self._bell, *(end for both in self._woken for end in both)):
            pipe.close()


class Caller:
    """A caller's end, in its process."""

    def __init__(self, line: Line) -> None:
        layout, number = line.layout, line.caller
        found = layout.views(line.buffer)
        rows = slice(number * layout.num_rows, (number + 1) * layout.num_rows)
        self._asked, self._answered = (
            tree.map_leaves(lambda x: x[rows], found[name]) for name in ("asked", "answered")
        )
        self._numbers = found["numbers"][number].numpy()
        self._bell, self._woken = line.bell, line.woken
        self._poll = select.poll()
        self._poll.register(self._woken.fileno(), select.POLLIN)
        self.active = False

    @property
    def active(self) -> bool:
        """Whether a call is to be expected, which the server waits a little for."""
        return bool(self._numbers[_ACTIVE])

    @active.setter
    def active(self, value: bool) -> None:
        self._numbers[_ACTIVE] = value

    def call(self, rows: Any, count: int, timeout_s: float) -> Any:
        """The server's answer to ``count`` rows, a tree of tensors that the next call overwrites.

        Raises:
            TimeoutError: there was none in time.
        """
        numbers, deadline = self._numbers, time.monotonic() + timeout_s
        tree.map_leaves(lambda to, src: to[:count].copy_(src), self._asked, rows)
        numbers[_COUNT] = count
        turn = int(numbers[_ASKED]) + 1
        memory_fence()
        numbers[_ASKED] = turn
        os.write(self._bell.fileno(), b"\0")
        while int(numbers[_ANSWERED]) != turn:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the inference process gave no answer for {timeout_s:g} s")
            if self._poll.poll(min(left_s, BEAT_S) * 1000):
                os.read(self._woken.fileno(), 4096)
        memory_fence()
        return tree.map_leaves(lambda x: x[:count], self._answered)


@dataclass(frozen=True)
class Asked:
    """Calls that are answered together."""

    rows: Any  # [N, ...], all rows asked
    callers: np.ndarray  # [n] int64
    turns: np.ndarray  # [n] int64
    places: Tensor  # [N] int64, of the rows in memory


class Server:
    """The server's end, in its process."""

    def __init__(self, desk: Desk) -> None:
        found, self._num_rows = desk.layout.views(desk.buffer), desk.layout.num_rows
        self._asked, self._answered = found["asked"], found["answered"]
        self._numbers, self._life = found["numbers"].numpy(), found["life"].numpy()
        self._wakes = [pipe.fileno() for pipe in desk.wakes]
        self._bell, self._desk = desk.bell.fileno(), desk
        self._poll = select.poll()
        self._poll.register(self._bell, select.POLLIN)

    def take(self, max_wait_s: float) -> Asked | None:
        """The next calls; None after ``BEAT_S`` without any, or if woken for nothing.

        Once there is one, those of all active callers are waited for, but not for longer than
        ``max_wait_s``.
        """
        deadline, waited = None, False
        while True:
            now = time.monotonic()
            self._life[0] = time.monotonic_ns()
            turns = self._numbers[:, _ASKED].copy()
            waits = turns != self._numbers[:, _ANSWERED]
            if waits.any():
                deadline = now + max_wait_s if deadline is None else deadline
                if now >= deadline or not (self._numbers[~waits, _ACTIVE]).any():
                    memory_fence()
                    return self._gathered(np.flatnonzero(waits), turns)
            elif waited:
                return None
            left_s, waited = BEAT_S if deadline is None else deadline - now, True
            if self._poll.poll(min(left_s, BEAT_S) * 1000):
                os.read(self._bell, 65536)

    def _gathered(self, callers: np.ndarray, turns: np.ndarray) -> Asked:
        counts, each = self._numbers[callers, _COUNT], self._num_rows
        begins = callers * each
        if (counts == each).all():
            places = (begins[:, None] + np.arange(each)).reshape(-1)
        else:
            parts = zip(begins, counts, strict=True)
            places = np.concatenate([np.arange(first, first + n) for first, n in parts])
        index = torch.from_numpy(places)
        rows = tree.map_leaves(lambda x: x.index_select(0, index), self._asked)
        return Asked(rows, callers, turns[callers], index)

    def answer(self, asked: Asked, rows: Any) -> None:
        """Answer these calls with a tree of tensors ``[N, ...]``, and wake their callers."""
        places = asked.places
        tree.map_leaves(lambda to, src: to.index_copy_(0, places, src), self._answered, rows)
        memory_fence()
        self._numbers[asked.callers, _ANSWERED] = asked.turns
        self._life[1] += 1
        for caller in asked.callers:
            os.write(self._wakes[caller], b"\0")

"""Calls of one process by many through shared memory: rows are asked, rows are answered.

    caller a                                        server
      call    ---- rows in memory; a byte, one pipe --->  take
              <--- rows in memory; a byte, pipe a ------  answer

    caller   produces: rows asked       waits for: its answer   unblocked by: answer, its timeout
    server   produces: rows answered    waits for: calls        unblocked by: calls, its beat

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

BEAT_S = 0.5  # a server that lives says so as often, or more often if it is asked to
MAX_CALLERS = 200  # pipes that a process can be given as it starts
_ASKED, _ANSWERED, _COUNT, _ACTIVE = range(4)


def layout(asked: Any, answered: Any, num_callers: int, num_rows: int) -> dict[str, Any]:
    """The tree of :class:`ArraySpec` of the memory of all calls.

    Args:
        asked, answered: trees of one row. num_rows: of a call, at most.
    """

    def many(row: ArraySpec) -> ArraySpec:
        return ArraySpec((num_callers * num_rows, *row.shape), row.dtype)

    return {
        "asked": tree.map_leaves(many, asked),
        "answered": tree.map_leaves(many, answered),
        "numbers": ArraySpec((num_callers, 4), torch.int64),
        "life": ArraySpec((2,), torch.int64),  # of the server: monotonic ns, answers
    }


@dataclass(frozen=True)
class ChannelEnd:
    """What a process needs, which can be sent to it as it starts."""

    spec: dict[str, Any]
    buffer: Tensor
    bell: Connection  # the server reads it, callers write to it
    wakes: tuple[Connection, ...]  # by caller, who reads it; a caller has its own alone
    caller: int = -1

    def memory(self) -> tuple[dict[str, Any], np.ndarray, int]:
        """What is in it, the callers' numbers ``[callers, 4]``, and rows of each."""
        found = views(self.buffer, self.spec)
        numbers = found["numbers"].numpy()
        return found, numbers, len(tree.leaves(found["asked"])[0]) // len(numbers)


class RequestChannel:
    """Memory and pipes of all calls, which outlive the processes at either end.

    Args:
        spec: a :func:`layout` with at most ``MAX_CALLERS`` callers.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec, self._buffer = spec, allocate(num_bytes(spec), shared=True)
        self._life = views(self._buffer, spec)["life"].numpy()
        self._bell = Pipe(duplex=False)
        self._wakes = [Pipe(duplex=False) for _ in range(spec["numbers"].shape[0])]
        self.greet()

    def line(self, caller: int) -> ChannelEnd:
        """The end of a caller, or of who replaces it."""
        return ChannelEnd(
            self._spec, self._buffer, self._bell[1], (self._wakes[caller][0],), caller
        )

    def desk(self) -> ChannelEnd:
        """The end of the server, or of who replaces it."""
        return ChannelEnd(self._spec, self._buffer, self._bell[0], tuple(x for _, x in self._wakes))

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
        for pipe in (*self._bell, *(end for both in self._wakes for end in both)):
            pipe.close()


class RequestClient:
    """A caller's end, in its process."""

    def __init__(self, end: ChannelEnd) -> None:
        found, numbers, each = end.memory()
        rows = slice(end.caller * each, (end.caller + 1) * each)
        mine = tree.map_leaves(lambda x: x[rows], found)
        self._asked, self._answered = mine["asked"], mine["answered"]
        self._numbers, self._end = numbers[end.caller], end
        self._poll = select.poll()
        self._poll.register(end.wakes[0].fileno(), select.POLLIN)
        self.expect(False)

    def expect(self, active: bool) -> None:
        """Whether calls are to be expected, so that the server waits a little for the next."""
        self._numbers[_ACTIVE] = active

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
        os.write(self._end.bell.fileno(), b"\0")
        while int(numbers[_ANSWERED]) != turn:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the inference process gave no answer for {timeout_s:g} s")
            if self._poll.poll(min(left_s, BEAT_S) * 1000):
                os.read(self._end.wakes[0].fileno(), 4096)
        memory_fence()
        return tree.map_leaves(lambda x: x[:count], self._answered)


@dataclass(frozen=True)
class RequestBatch:
    """Calls that are answered together."""

    rows: Any  # [N, ...], all rows asked
    callers: np.ndarray  # [n] int64
    turns: np.ndarray  # [n] int64
    places: Tensor  # [N] int64, of the rows in memory


class RequestServer:
    """The server's end, in its process.

    Args:
        beat_s: how often it says that it lives; None: ``BEAT_S``.
    """

    def __init__(self, end: ChannelEnd, beat_s: float | None = None) -> None:
        self._beat_s = BEAT_S if beat_s is None else beat_s
        found, self._numbers, each = end.memory()
        self._asked, self._answered = found["asked"], found["answered"]
        self._life, self._end = found["life"].numpy(), end
        self._rows = np.arange(len(self._numbers) * each).reshape(-1, each)
        self._poll = select.poll()
        self._poll.register(end.bell.fileno(), select.POLLIN)

    def take(self, max_wait_s: float) -> RequestBatch | None:
        """The next calls; None after a beat without any, or if woken for nothing.

        Once there is one, those of all callers that are expected are waited for, but not for longer
        than ``max_wait_s``.
        """
        deadline, waited = None, False
        while True:
            now = time.monotonic()
            self._life[0] = time.monotonic_ns()
            turns = self._numbers[:, _ASKED].copy()
            waits = turns != self._numbers[:, _ANSWERED]
            if waits.any():
                deadline = now + max_wait_s if deadline is None else deadline
                if now >= deadline or not self._numbers[~waits, _ACTIVE].any():
                    memory_fence()
                    return self._gathered(np.flatnonzero(waits), turns)
            elif waited:
                return None
            left_s, waited = self._beat_s if deadline is None else deadline - now, True
            if self._poll.poll(min(left_s, self._beat_s) * 1000):
                os.read(self._end.bell.fileno(), 65536)

    def _gathered(self, callers: np.ndarray, turns: np.ndarray) -> RequestBatch:
        asked = np.arange(self._rows.shape[1]) < self._numbers[callers, _COUNT, None]
        places = torch.from_numpy(self._rows[callers][asked])
        rows = tree.map_leaves(lambda x: x.index_select(0, places), self._asked)
        return RequestBatch(rows, callers, turns[callers], places)

    def answer(self, asked: RequestBatch, rows: Any) -> None:
        """Answer these calls with a tree of tensors ``[N, ...]``, and wake their callers."""
        tree.map_leaves(lambda to, x: to.index_copy_(0, asked.places, x), self._answered, rows)
        memory_fence()
        self._numbers[asked.callers, _ANSWERED] = asked.turns
        self._life[1] += 1
        for caller in asked.callers:
            os.write(self._end.wakes[caller].fileno(), b"\0")

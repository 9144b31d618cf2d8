"""Remote procedure calls from many clients to one server through shared memory.

    client a                                        server
      call    ---- rows in memory; a byte, one pipe --->  take
              <--- rows in memory; a byte, pipe a ------  answer

    client   produces: requests     waits for: its answer    unblocked by: answer, timeout
    server   produces: answers      waits for: requests      unblocked by: requests, heartbeat

The state of each request is in memory; the bytes only wake processes. So a process may be killed at
any instant: a restarted server finds all unanswered requests, and a restarted client continues with
its predecessor's request number, so that it never mistakes an old answer for its own.
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

BEAT_S = 0.5  # default heartbeat period of a server
MAX_CALLERS = 200  # number of pipes that a process can inherit at its start
_REQUESTED, _ANSWERED, _COUNT, _ACTIVE = range(4)


def layout(request: Any, answer: Any, num_callers: int, num_rows: int) -> dict[str, Any]:
    """Return the tree of :class:`ArraySpec` of the memory of all requests.

    Args:
        request, answer: trees of one row.
        num_callers: number of clients.
        num_rows: largest number of rows of a request.
    """

    def many(row: ArraySpec) -> ArraySpec:
        return ArraySpec((num_callers * num_rows, *row.shape), row.dtype)

    return {
        "request": tree.map_leaves(many, request),
        "answer": tree.map_leaves(many, answer),
        "numbers": ArraySpec((num_callers, 4), torch.int64),
        "life": ArraySpec(
            (2,), torch.int64
        ),  # the server's heartbeat in monotonic ns, and its number of answers
    }


@dataclass(frozen=True)
class ChannelEnd:
    """One end of the channel, which can be sent to a process at its start."""

    spec: dict[str, Any]
    buffer: Tensor
    bell: Connection  # clients write to it, the server reads
    wakes: tuple[Connection, ...]  # by client, which reads it; a client has only its own
    caller: int = -1

    def memory(self) -> tuple[dict[str, Any], np.ndarray, int]:
        """Return the memory's tree, the clients' numbers ``[clients, 4]``, and rows per client."""
        memory = views(self.buffer, self.spec)
        numbers = memory["numbers"].numpy()
        return memory, numbers, len(tree.leaves(memory["request"])[0]) // len(numbers)


class RequestChannel:
    """Memory and pipes of all requests, which outlive the processes at either end.

    Args:
        spec: a :func:`layout` with at most ``MAX_CALLERS`` clients.
    """

    def __init__(self, spec: dict[str, Any]) -> None:
        self._spec, self._buffer = spec, allocate(num_bytes(spec), shared=True)
        self._life = views(self._buffer, spec)["life"].numpy()
        self._bell = Pipe(duplex=False)
        self._wakes = [Pipe(duplex=False) for _ in range(spec["numbers"].shape[0])]
        self.reset_heartbeat()

    def client_end(self, caller: int) -> ChannelEnd:
        """Return the end of a client, or of its replacement."""
        return ChannelEnd(
            self._spec, self._buffer, self._bell[1], (self._wakes[caller][0],), caller
        )

    def server_end(self) -> ChannelEnd:
        """Return the end of the server, or of its replacement."""
        return ChannelEnd(self._spec, self._buffer, self._bell[0], tuple(x for _, x in self._wakes))

    def reset_heartbeat(self) -> None:
        """Reset heartbeat and answer count for a new server."""
        self._life[:] = time.monotonic_ns(), 0

    @property
    def silent_s(self) -> float:
        """Seconds since the server's last heartbeat."""
        return (time.monotonic_ns() - int(self._life[0])) * 1e-9

    @property
    def num_answers(self) -> int:
        """Number of batches that this server has answered."""
        return int(self._life[1])

    def wake(self) -> None:
        """Wake the server, so that it polls its other inputs."""
        os.write(self._bell[1].fileno(), b"\0")

    def close(self) -> None:
        """Close all pipes here; safe to call twice."""
        for pipe in (*self._bell, *(end for both in self._wakes for end in both)):
            pipe.close()


class RequestClient:
    """Client's end of the channel, in its process."""

    def __init__(self, end: ChannelEnd) -> None:
        memory, numbers, each = end.memory()
        rows = slice(end.caller * each, (end.caller + 1) * each)
        mine = tree.map_leaves(lambda x: x[rows], memory)
        self._requests, self._answers = mine["request"], mine["answer"]
        self._numbers, self._end = numbers[end.caller], end
        self._poll = select.poll()
        self._poll.register(end.wakes[0].fileno(), select.POLLIN)
        self.expect(False)

    def expect(self, active: bool) -> None:
        """Set whether more requests are expected, so that the server waits briefly for the next."""
        self._numbers[_ACTIVE] = active

    def call(self, rows: Any, count: int, timeout_s: float) -> Any:
        """Send ``count`` rows; return the answer, whose tensors the next call overwrites.

        Raises:
            TimeoutError: the server didn't answer in time.
        """
        numbers, deadline = self._numbers, time.monotonic() + timeout_s
        tree.map_leaves(lambda to, src: to[:count].copy_(src), self._requests, rows)
        numbers[_COUNT] = count
        turn = int(numbers[_REQUESTED]) + 1
        memory_fence()
        numbers[_REQUESTED] = turn
        os.write(self._end.bell.fileno(), b"\0")
        while int(numbers[_ANSWERED]) != turn:
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimeoutError(f"the inference process did not answer for {timeout_s:g} s")
            if self._poll.poll(min(left_s, BEAT_S) * 1000):
                os.read(self._end.wakes[0].fileno(), 4096)
        memory_fence()
        return tree.map_leaves(lambda x: x[:count], self._answers)


@dataclass(frozen=True)
class RequestBatch:
    """Requests that are answered together."""

    rows: Any  # [N, ...], rows of all requests
    callers: np.ndarray  # [n] int64
    turns: np.ndarray  # [n] int64
    places: Tensor  # [N] int64, indices of the rows in memory


class RequestServer:
    """Server's end of the channel, in its process.

    Args:
        beat_s: heartbeat period in seconds; None: ``BEAT_S``.
    """

    def __init__(self, end: ChannelEnd, beat_s: float | None = None) -> None:
        self._beat_s = BEAT_S if beat_s is None else beat_s
        memory, self._numbers, each = end.memory()
        self._requests, self._answers = memory["request"], memory["answer"]
        self._life, self._end = memory["life"].numpy(), end
        self._rows = np.arange(len(self._numbers) * each).reshape(-1, each)
        self._poll = select.poll()
        self._poll.register(end.bell.fileno(), select.POLLIN)

    def take(self, max_wait_s: float) -> RequestBatch | None:
        """Return the next requests; None after a heartbeat period without any, or a bare wake-up.

        After the first request, waits for all clients that expect to send one, but not for longer
        than ``max_wait_s``.
        """
        deadline, waited = None, False
        while True:
            now = time.monotonic()
            self._life[0] = time.monotonic_ns()
            turns = self._numbers[:, _REQUESTED].copy()
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
        is_used = np.arange(self._rows.shape[1]) < self._numbers[callers, _COUNT, None]
        places = torch.from_numpy(self._rows[callers][is_used])
        rows = tree.map_leaves(lambda x: x.index_select(0, places), self._requests)
        return RequestBatch(rows, callers, turns[callers], places)

    def answer(self, batch: RequestBatch, rows: Any) -> None:
        """Answer requests with a tree of tensors ``[N, ...]``, and wake their clients."""
        tree.map_leaves(lambda to, x: to.index_copy_(0, batch.places, x), self._answers, rows)
        memory_fence()
        self._numbers[batch.callers, _ANSWERED] = batch.turns
        self._life[1] += 1
        for caller in batch.callers:
            os.write(self._end.wakes[caller].fileno(), b"\0")

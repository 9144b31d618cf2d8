"""Collectives of several learners: all-reduce, gather and broadcast.

A learner only uses the calls of :class:`headrace.types.Group`, which do nothing for a single
learner. Ranks on one machine all-reduce vectors through shared memory. With several machines, the
first rank of each then all-reduces with the others through gloo (``tree_allreduce.py``). Tensors on
an accelerator use NCCL.
"""

from __future__ import annotations

import contextlib
import datetime
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.distributed import tree_allreduce
from headrace.distributed.shared_memory import (
    ROW_BYTES,
    MissingRanks,
    SharedMemoryAllReduce,
    connect_shared_memory,
)
from headrace.errors import LearnerFailed, OthersLost
from headrace.types import Clock

_POLL_S = 0.02
_BLAME_S = 1.0  # time in which live ranks report lost ones
_ANSWER_S = 2.0  # extra time for answers of the store

T = TypeVar("T")


@dataclass(frozen=True)
class Rendezvous:
    """Rank and group size of a learner, and the store through which it finds the others.

    ``store`` is called in the learner's process and returns a ``torch.distributed`` store shared by
    all learners. Earlier groups may have used it.
    """

    rank: int
    size: int
    local_rank: int  # rank on its machine
    store: Callable[[float], dist.Store]  # argument: timeout in seconds


class Ranks:
    """One learner's end of a group of several, a :class:`headrace.types.Group`.

    Args:
        rendezvous: rendezvous of this learner.
        timeout_s: timeout of every collective in seconds.
        device: device of the gradients.
        share_memory: use shared memory between ranks on one machine.

    Raises:
        LearnerFailed: a learner never arrived, or exited while the others joined; it is named.
    """

    def __init__(
        self,
        rendezvous: Rendezvous,
        timeout_s: float,
        device: str = "cpu",
        share_memory: bool = True,
    ) -> None:
        self.rank, self.size, self.local_rank = (
            rendezvous.rank,
            rendezvous.size,
            rendezvous.local_rank,
        )
        self.clock, self._timeout_s = Clock(), timeout_s
        store = rendezvous.store(timeout_s)
        self._store = dist.PrefixStore(
            _rendezvous(store, rendezvous.rank, rendezvous.size, timeout_s), store
        )
        self.note(-1)
        with self._blaming():
            dist.init_process_group(
                "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
                store=dist.PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
        self._hosts = [[rank] for rank in range(self.size)]  # ranks by machine
        self._board: SharedMemoryAllReduce | None = None
        if share_memory:
            with self.clock.aside():
                self._hosts, self._board = connect_shared_memory(self, self._store)
        self._mates = next(host for host in self._hosts if self.rank in host)
        self._first = [host[0] for host in self._hosts]

    @property
    def shares_memory(self) -> bool:
        """True if all learners are on one machine and use only shared memory."""
        return len(self._hosts) == 1

    def sum(self, values: Tensor) -> Tensor:
        with self.clock.meeting(), self._blaming():
            if values.is_cuda:
                dist.all_reduce(values)
                torch.cuda.synchronize(values.device)
                return values
            values = values.contiguous()
            parts = values.split(ROW_BYTES // values.element_size())
            if self._board is not None:
                for part in parts:
                    torch.sum(self._board.exchange(part, self._timeout_s), 0, out=part)
            if self.shares_memory:
                return values
            if self.rank in self._first:
                tree_allreduce.add_up(values, self._first, self._first.index(self.rank))
            if self._board is not None:
                for part in parts:
                    part.copy_(self._board.exchange(part, self._timeout_s)[0])
        return values

    def gather(self, values: Tensor) -> Tensor:
        with self.clock.meeting(), self._blaming():
            return self._gather(values)

    def _gather(self, values: Tensor) -> Tensor:
        small = values.numel() * values.element_size() <= ROW_BYTES
        if self.shares_memory and self._board is not None and small:
            rows = self._board.exchange(values.cpu(), self._timeout_s).clone()
        else:
            rows = tree_allreduce.rows(values.cpu(), self.size, self.rank)
        return rows.to(values.device)

    def gather_objects(self, value: Any) -> list[Any]:
        values = [None] * self.size if self.rank == 0 else None
        with self._blaming():
            dist.gather_object(value, values)
        return values or []

    def broadcast(self, value: Any) -> Any:
        values = [value]
        with self._blaming():
            dist.broadcast_object_list(values)
        return values[0]

    def note(self, number: int) -> None:
        with self._blaming():
            within(self._timeout_s, lambda: self._store.set(f"note/{self.rank}", str(number)))

    def notes(self) -> list[int]:
        return [int(x) for x in self._store.multi_get([f"note/{r}" for r in range(self.size)])]

    @contextlib.contextmanager
    def _blaming(self) -> Iterator[None]:
        """Name the learners that cause an error inside the block.

        They are the ones that don't report others as lost in time.
        """
        try:
            yield
        except MissingRanks as error:
            lost = [self._mates[r] for r in error.ranks]
            if not self.shares_memory:  # they may themselves be waiting for another machine
                lost = self._to_blame(lost, " ".join(map(str, lost))) or lost
            status = "has died" if error.dead else f"was silent for {self._timeout_s:g} s"
            raise OthersLost(
                f"learner {self.rank} waited for {learners(lost)}: {status}"
            ) from error
        except RuntimeError as error:
            lost = [error.rank] if isinstance(error, tree_allreduce.RankLost) else []
            others = lost or [r for r in range(self.size) if r != self.rank]
            blamed = self._to_blame(others, " ".join(map(str, lost))) or others
            raise OthersLost(f"learner {self.rank} lost {learners(blamed)}: {error}") from error

    def _to_blame(self, others: list[int], lost: str) -> list[int]:
        """Return the lost ranks, directly or through others, that don't report in time.

        Args:
            lost: ranks that this one reports as lost; empty if unknown.
        """

        def silent_ranks() -> list[int]:
            silent, visited, remaining = set[int](), {self.rank}, list(others)
            while remaining:
                if (rank := remaining.pop()) in visited:
                    continue
                visited.add(rank)
                if self._store.check([f"lost_by/{rank}"]):
                    remaining += map(int, self._store.get(f"lost_by/{rank}").decode().split())
                else:
                    silent.add(rank)
            return sorted(silent)

        try:
            within(0.0, lambda: self._store.set(f"lost_by/{self.rank}", lost))
            time.sleep(_BLAME_S)
            return within(0.0, silent_ranks)
        except RuntimeError:
            return [0]  # rank 0 hosts the store

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _rendezvous(store: dist.Store, rank: int, size: int, timeout_s: float) -> str:
    """Agree on a common name for the rendezvous of exactly these processes.

    Rank 0 chooses the name, the others sign in, and rank 0 writes the list of participants. A rank
    that isn't listed waits for a rank 0 that has yet to start. (torchrun's restart count differs
    between machines.)

    Raises:
        LearnerFailed: a learner never arrived; it is named.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout_s
    missing = [0]

    def poll() -> str | None:
        nonlocal missing
        if rank == 0:
            store.set("meeting", mine)
        elif not store.check(["meeting"]):
            return None
        name = store.get("meeting").decode()
        signed, listed = [f"{name}/signed/{r}" for r in range(size)], f"{name}/listed"
        store.set(signed[rank], mine)
        if store.check([listed]):
            missing = [0]
            return name if mine in store.get(listed).decode().split() else None
        missing = [r for r in range(size) if not store.check([signed[r]])]
        if rank == 0 and not missing:
            store.set(listed, " ".join(store.get(key).decode() for key in signed))
        return None

    with contextlib.suppress(RuntimeError):  # without the store, rank 0 never arrived
        while time.monotonic() < deadline:
            if name := within(deadline - time.monotonic(), poll):
                return name
            time.sleep(_POLL_S)
    raise LearnerFailed(
        f"{learners(missing or [0])} of {size} never arrived: learner {rank} waited "
        f"{timeout_s:g} s (learner_timeout_s)"
    )


def within(limit_s: float, call: Callable[[], T]) -> T:
    """Return the result of a call to a store.

    Raises:
        RuntimeError: it failed or timed out; most calls have no timeout for broken connections.
    """
    answer: Future[T] = Future()

    def work() -> None:
        try:
            answer.set_result(call())
        except Exception as error:
            answer.set_exception(error)

    thread = threading.Thread(target=work, name="headrace-store", daemon=True)
    thread.start()
    thread.join(limit_s + _ANSWER_S)
    if not answer.done():
        raise RuntimeError("the store of the group doesn't answer")
    return answer.result()


def learners(ranks: list[int]) -> str:
    """Format ranks as ``learner 1`` or ``learners 1, 3``."""
    return f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def file_rendezvous(path: str, rank: int, size: int) -> Rendezvous:
    """Create the rendezvous of a learner started with all others on this machine."""

    def store(timeout_s: float) -> dist.Store:
        if hasattr(socket, "if_nameindex"):
            for _, name in socket.if_nameindex():
                if name in ("lo", "lo0"):  # don't listen on other interfaces
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        file = path
        if path.startswith("/proc/"):  # of another process; torch would wait if it died
            file = f"/proc/self/fd/{os.open(path, os.O_RDWR)}"
        return dist.FileStore(file, size)

    return Rendezvous(rank, size, rank, store)

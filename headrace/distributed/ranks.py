"""What several learners do together: add vectors up and read each other's.

A learner knows only the few calls of :class:`headrace.types.Group`; one that is alone is the case
in which they do nothing. Ranks of one machine exchange vectors through shared memory; of several
machines, the first rank of each then adds them up with the others' through gloo (``sums.py``).
Tensors on an accelerator go through NCCL.
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
    share_boards,
)
from headrace.errors import LearnerFailed, OthersLost
from headrace.types import Clock

_POLL_S = 0.02
_BLAME_S = 1.0  # how long the others are given to say that they live
_ANSWER_S = 2.0  # how much longer than it has to take the store may take to answer

T = TypeVar("T")


@dataclass(frozen=True)
class Rendezvous:
    """Which learner of how many this is, and how it finds the others.

    ``store`` is called in the learner's process and gives a ``torch.distributed`` store that all of
    them reach; earlier ones may have used it.
    """

    rank: int
    size: int
    local_rank: int  # among the learners of its machine
    store: Callable[[float], dist.Store]  # given the time-out in seconds


class Ranks:
    """One learner's end of a group of several: a :class:`headrace.types.Group`.

    Args:
        met: of this learner. timeout_s: of every wait. device: of the gradients.
        share_memory: exchange through shared memory where all are on one machine.

    Raises:
        LearnerFailed: a learner never arrived, or ended while the others joined; it is named.
    """

    def __init__(
        self, met: Rendezvous, timeout_s: float, device: str = "cpu", share_memory: bool = True
    ) -> None:
        self.rank, self.size, self.local_rank = met.rank, met.size, met.local_rank
        self.clock, self._timeout_s = Clock(), timeout_s
        store = met.store(timeout_s)
        self._store = dist.PrefixStore(_meet(store, met.rank, met.size, timeout_s), store)
        self.note(-1)
        with self._blaming():
            dist.init_process_group(
                "gloo" if device == "cpu" else "cpu:gloo,cuda:nccl",
                store=dist.PrefixStore("group", self._store),
                rank=self.rank,
                world_size=self.size,
                timeout=datetime.timedelta(seconds=timeout_s),
            )
        self._hosts = [[rank] for rank in range(self.size)]  # the ranks of each
        self._board: SharedMemoryAllReduce | None = None
        if share_memory:
            with self.clock.aside():
                self._hosts, self._board = share_boards(self, self._store)
        self._mates = next(host for host in self._hosts if self.rank in host)
        self._first = [host[0] for host in self._hosts]

    @property
    def shares_memory(self) -> bool:
        """Whether vectors go through shared memory alone: all learners are on one machine."""
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
        """Say which learners are to blame for what goes wrong inside.

        They are those who don't complain of the others in time.
        """
        try:
            yield
        except MissingRanks as error:
            lost = [self._mates[r] for r in error.ranks]
            if not self.shares_memory:  # they may be waiting themselves, for another machine
                lost = self._to_blame(lost, " ".join(map(str, lost))) or lost
            what = "has died" if error.dead else f"was silent for {self._timeout_s:g} s"
            raise OthersLost(f"learner {self.rank} waited for {learners(lost)}: {what}") from error
        except RuntimeError as error:
            lost = [error.rank] if isinstance(error, tree_allreduce.RankLost) else []
            others = lost or [r for r in range(self.size) if r != self.rank]
            blamed = self._to_blame(others, " ".join(map(str, lost))) or others
            raise OthersLost(f"learner {self.rank} lost {learners(blamed)}: {error}") from error

    def _to_blame(self, others: list[int], lost: str) -> list[int]:
        """Of the others, and of those whom they have lost themselves, who don't complain in time.

        Args:
            lost: the ranks that this one complains of; empty if it doesn't know.
        """

        def quiet() -> list[int]:
            found, seen, left = set[int](), {self.rank}, list(others)
            while left:
                if (rank := left.pop()) in seen:
                    continue
                seen.add(rank)
                if self._store.check([f"complained/{rank}"]):
                    left += map(int, self._store.get(f"complained/{rank}").decode().split())
                else:
                    found.add(rank)
            return sorted(found)

        try:
            within(0.0, lambda: self._store.set(f"complained/{self.rank}", lost))
            time.sleep(_BLAME_S)
            return within(0.0, quiet)
        except RuntimeError:
            return [0]  # it holds the store

    def close(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()


def _meet(store: dist.Store, rank: int, size: int, timeout_s: float) -> str:
    """A name for the meeting of these very processes, the same for all of them.

    Rank 0 names it; the others sign in; it writes the list of those who did. One that finds itself
    on no list is waiting for a rank 0 that has yet to be started. (torchrun's own count of restarts
    is not the same on all machines.)

    Raises:
        LearnerFailed: one of them never arrived; it is named.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout_s
    missing = [0]

    def look() -> str | None:
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

    with contextlib.suppress(RuntimeError):  # a store that is gone: rank 0 never arrived
        while time.monotonic() < deadline:
            if name := within(deadline - time.monotonic(), look):
                return name
            time.sleep(_POLL_S)
    raise LearnerFailed(
        f"{learners(missing or [0])} of {size} never arrived: learner {rank} waited "
        f"{timeout_s:g} s (learner_timeout_s)"
    )


def within(limit_s: float, call: Callable[[], T]) -> T:
    """What a call to a store returns.

    Raises:
        RuntimeError: it failed, or there was no answer: most calls have no time-out of their own
            where a link is cut.
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
    """``learner 1`` or ``learners 1, 3``."""
    return f"learner{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def file_rendezvous(path: str, rank: int, size: int) -> Rendezvous:
    """A learner that one process started with all others on this machine."""

    def store(timeout_s: float) -> dist.Store:
        if hasattr(socket, "if_nameindex"):
            for _, name in socket.if_nameindex():
                if name in ("lo", "lo0"):  # nothing listens on another interface
                    os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        file = path
        if path.startswith("/proc/"):  # another process's, without whom torch would wait for it
            file = f"/proc/self/fd/{os.open(path, os.O_RDWR)}"
        return dist.FileStore(file, size)

    return Rendezvous(rank, size, rank, store)

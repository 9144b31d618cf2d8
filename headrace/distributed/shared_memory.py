"""All-reduce through shared memory: every rank of a machine posts a vector and reads all.

    rank r:  row[count % 2][r] = vector; posted[r] = count     then waits until all posted >= count

Rows are double-buffered, so one wait per exchange is enough: when a rank overwrites a row, it has
seen all ranks post the next exchange, and they had read the row by then. Exchanging a few kilobytes
takes microseconds, compared with a millisecond through sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
import zlib
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from headrace.processes import memory_file
from headrace.transport.slab import memory_fence
from headrace.types import Group

ROW_BYTES = 1 << 20
_LINE = 16  # int64 per rank in the header: two cache lines, to avoid false sharing
_COUNT, _PID, _SIZES = 0, 1, slice(2, 4)  # number of the last post; bytes by buffer
_SPINS = 300  # polls before the first sleep, about the duration of an exchange
_MAX_SLEEP_S = 1e-3
_LOOK_FOR_DEAD_S = 0.2


class MissingRanks(Exception):
    """Raised if ranks did not post; ``dead`` if their processes are gone."""

    def __init__(self, ranks: list[int], dead: bool) -> None:
        super().__init__(ranks, dead)
        self.ranks, self.dead = ranks, dead


class SharedMemoryAllReduce:
    """One rank's end of the shared-memory all-reduce.

    Args:
        path: file of :func:`shared_memory_bytes` zeros that all ranks map; may be deleted then.
        rank: rank of this process on its machine.
        size: number of ranks on this machine.

    Raises:
        OSError, RuntimeError: the file can't be mapped.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        num_bytes = shared_memory_bytes(size)
        if not path.exists() or path.stat().st_size != num_bytes:
            raise OSError(f"{path} is not the shared memory of {size} ranks")
        memory = torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
        header = memory[: size * _LINE * 8].view(torch.int64).view(size, _LINE)
        self._rows = memory[size * _LINE * 8 :].view(2, size, ROW_BYTES)
        self._posted, self._pids = header[:, _COUNT].numpy(), header[:, _PID].numpy()
        self._sizes = header[:, _SIZES].numpy()
        self._rank, self._size, self._count = rank, size, 0
        self._pids[rank] = os.getpid()

    def sees_all(self) -> bool:
        """Return True if all ranks have mapped the file and their processes are visible here."""
        return all(_alive(int(pid)) for pid in self._pids)

    def exchange(self, values: Tensor, timeout_s: float) -> Tensor:
        """Post a vector ``[n]`` of at most ``ROW_BYTES``; return all ranks' ``[W, n]``.

        The result is a view that is valid until the next exchange.

        Raises:
            MissingRanks: a rank posted nothing in time, or its process is gone.
            RuntimeError: the ranks posted vectors of different sizes.
        """
        self._count += 1
        bank = self._rows[self._count % 2]
        num_bytes = values.numel() * values.element_size()
        rows = bank[:, :num_bytes].view(values.dtype)
        rows[self._rank].copy_(values)
        sizes = self._sizes[:, self._count % 2]
        sizes[self._rank] = num_bytes
        memory_fence()
        self._posted[self._rank] = self._count
        self._wait(timeout_s)
        memory_fence()
        if (sizes != num_bytes).any():
            raise RuntimeError(f"the learners exchange vectors of {sizes.tolist()} bytes")
        return rows

    def _wait(self, timeout_s: float) -> None:
        for _ in range(_SPINS):
            if self._posted.min() >= self._count:
                return
        start = looked = time.monotonic()
        while self._posted.min() < self._count:
            now = time.monotonic()
            time.sleep(min(_MAX_SLEEP_S, 1e-5 + (now - start) / 10))
            silent = [int(r) for r in range(self._size) if self._posted[r] < self._count]
            if now - start > timeout_s:
                raise MissingRanks(silent, dead=False)
            if now - looked > _LOOK_FOR_DEAD_S:
                looked = now
                if dead := [r for r in silent if not _alive(int(self._pids[r]))]:
                    raise MissingRanks(dead, dead=True)


def _alive(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except OSError as error:
        return isinstance(error, PermissionError)  # the process of another user
    return True


def shared_memory_bytes(size: int) -> int:
    """Return the bytes of shared memory for ``size`` ranks."""
    return size * (_LINE * 8 + 2 * ROW_BYTES)


def connect_shared_memory(
    group: Group, store: dist.Store
) -> tuple[list[list[int]], SharedMemoryAllReduce | None]:
    """Group the ranks by machine, and map shared memory with those of this machine.

    If one rank can't map its machine's file, or see all of its processes, each rank of that machine
    counts as a separate host. The second result is None if this rank shares memory with no other.
    """

    def gather(value: int) -> list[int]:
        return [int(x) for x in group.gather(torch.tensor([value]))]

    places = gather(_place())
    mates = [rank for rank, place in enumerate(places) if place == places[group.rank]]
    board, me = None, mates.index(group.rank)
    with contextlib.ExitStack() as stack:
        path = ""
        if me == 0 and len(mates) > 1:
            with contextlib.suppress(OSError):  # not enough memory
                path = stack.enter_context(memory_file(shared_memory_bytes(len(mates))))
        store.set(f"board/{group.rank}", path)
        gather(0)  # all have set their paths
        path = store.get(f"board/{mates[0]}").decode()
        if len(mates) > 1:
            with contextlib.suppress(OSError, RuntimeError):
                board = SharedMemoryAllReduce(Path(path), me, len(mates))
        mapped = gather(board is not None)
        connected = gather(board is not None and all(mapped[r] for r in mates) and board.sees_all())
    hosts = [[r for r, at in enumerate(places) if at == place] for place in dict.fromkeys(places)]
    shared = [host for host in hosts if all(connected[r] for r in host)]
    apart = [[r] for host in hosts if host not in shared for r in host]
    return sorted(shared + apart), board if mates in shared else None


def _place() -> int:
    """Return a number of this machine; ranks with equal numbers may share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    boot_id = boot.read_text() if boot.exists() else ""
    return zlib.crc32(f"{socket.gethostname()} {boot_id}".encode())

"""A board in shared memory: every rank of one machine posts a vector and reads everybody's.

    rank r:  row[count % 2][r] = vector; posted[r] = count     then waits until all posted >= count

Rows are doubled, so one wait per exchange is enough: who writes a row for the second time after an
exchange has seen all ranks post the next one, and each of them had read the first by then. The
exchange of a few kilobytes takes microseconds, where sockets take a millisecond.
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
_LINE = 16  # int64 per rank in the header: two cache lines, so that ranks don't share any
_COUNT, _PID, _SIZES = 0, 1, slice(2, 4)  # of what was posted last, bytes by bank
_SPINS = 300  # looks before the first sleep: about as long as an exchange of equals takes
_MAX_SLEEP_S = 1e-3
_LOOK_FOR_DEAD_S = 0.2


class MissingRanks(Exception):
    """Some ranks did not post: their numbers, and whether their processes are gone."""

    def __init__(self, ranks: list[int], dead: bool) -> None:
        super().__init__(ranks, dead)
        self.ranks, self.dead = ranks, dead


class SharedMemoryAllReduce:
    """One rank's end.

    Args:
        path: a file of :func:`board_bytes` zeros that all ranks map; it may be deleted afterwards.
        rank, size: of this process.

    Raises:
        OSError, RuntimeError: the file can't be mapped.
    """

    def __init__(self, path: Path, rank: int, size: int) -> None:
        num_bytes = board_bytes(size)
        if not path.exists() or path.stat().st_size != num_bytes:
            raise OSError(f"{path} is no board of {size} ranks")
        memory = torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
        header = memory[: size * _LINE * 8].view(torch.int64).view(size, _LINE)
        self._rows = memory[size * _LINE * 8 :].view(2, size, ROW_BYTES)
        self._posted, self._pids = header[:, _COUNT].numpy(), header[:, _PID].numpy()
        self._sizes = header[:, _SIZES].numpy()
        self._rank, self._size, self._count = rank, size, 0
        self._pids[rank] = os.getpid()

    def sees_all(self) -> bool:
        """Whether every rank has mapped the file, and its process can be looked for from here."""
        return all(_alive(int(pid)) for pid in self._pids)

    def exchange(self, values: Tensor, timeout_s: float) -> Tensor:
        """Post a vector ``[n]`` of at most ``ROW_BYTES``; returns all ranks' ``[W, n]``.

        What is returned is a view that holds until the next exchange.

        Raises:
            Silent: a rank posted nothing in time, or its process is gone.
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
        return isinstance(error, PermissionError)  # it is somebody else's
    return True


def board_bytes(size: int) -> int:
    """Bytes of the file behind a board of ``size`` ranks."""
    return size * (_LINE * 8 + 2 * ROW_BYTES)


def share_boards(
    group: Group, store: dist.Store
) -> tuple[list[list[int]], SharedMemoryAllReduce | None]:
    """The ranks of each machine, and a board of those of this one; its file is deleted again.

    Who can't map his machine's file, or see all of its processes, makes all ranks of that machine
    hosts of their own. None: this rank shares with nobody.
    """

    def gather(value: int) -> list[int]:
        return [int(x) for x in group.gather(torch.tensor([value]))]

    places = gather(_place())
    mates = [rank for rank, place in enumerate(places) if place == places[group.rank]]
    board, me = None, mates.index(group.rank)
    with contextlib.ExitStack() as stack:
        path = ""
        if me == 0 and len(mates) > 1:
            with contextlib.suppress(OSError):  # there is no room
                path = stack.enter_context(memory_file(board_bytes(len(mates))))
        store.set(f"board/{group.rank}", path)
        gather(0)  # all have told
        path = store.get(f"board/{mates[0]}").decode()
        if len(mates) > 1:
            with contextlib.suppress(OSError, RuntimeError):
                board = SharedMemoryAllReduce(Path(path), me, len(mates))
        mapped = gather(board is not None)
        seen = gather(board is not None and all(mapped[r] for r in mates) and board.sees_all())
    hosts = [[r for r, at in enumerate(places) if at == place] for place in dict.fromkeys(places)]
    shared = [host for host in hosts if all(seen[r] for r in host)]
    apart = [[r] for host in hosts if host not in shared for r in host]
    return sorted(shared + apart), board if mates in shared else None


def _place() -> int:
    """A number for this machine: ranks with the same one may share memory."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    told = boot.read_text() if boot.exists() else ""
    return zlib.crc32(f"{socket.gethostname()} {told}".encode())

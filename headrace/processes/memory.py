"""Memory of a process, and files that live in memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from headrace.processes import control_groups

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGE_BYTES = 1 << 30
SHARED_FOLDER = "/dev/shm"
ENLARGE = "--shm-size=2g (docker run), or an emptyDir of medium Memory at /dev/shm (Kubernetes)"
_OLD_NAMES = "memory.limit_in_bytes", "memory.usage_in_bytes"


def keep_freed_memory() -> None:
    """Let the C allocator reuse large freed blocks instead of returning them to the kernel.

    Activations of a few MB are allocated and freed many times a second; by default glibc maps and
    unmaps each of them, and the page faults cost more than the arithmetic. No effect elsewhere.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TOP_PAD, 16 << 20)


def return_freed_memory() -> None:
    """Give the kernel what is freed by now, as what a start needed once. No effect elsewhere."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int | None:
    """Main memory that this process takes, shared pages among it; None: unknown."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    return None


def free_bytes() -> int | None:
    """Memory that processes here may still take; None: unknown. Limits of control groups count."""
    found = []
    with contextlib.suppress(OSError, ValueError, StopIteration):
        with open("/proc/meminfo", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
        found.append(int(line.split()[1]) << 10)
    for folder in control_groups.folders("memory"):
        for limit, used in (("memory.max", "memory.current"), _OLD_NAMES):
            with contextlib.suppress(OSError, ValueError):  # "max" is no number
                most, taken = (int((folder / name).read_text()) for name in (limit, used))
                reclaimable = _file_pages(folder)
                found.append(max(0, most - taken + reclaimable))
    return min(found, default=None)


def free_shared_bytes(folder: str = SHARED_FOLDER) -> int | None:
    """Bytes that shared memory can still take; None: there is no limit, or it isn't known.

    Containers often mount ``/dev/shm`` with 64 MiB, read-only, or not at all.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        found = os.statvfs(folder)
    except OSError:
        return 0
    if found.f_flag & os.ST_RDONLY or not os.access(folder, os.W_OK):
        return 0
    return found.f_bavail * found.f_frsize if found.f_blocks else None


def _file_pages(folder: Path) -> int:
    """Bytes of files that a group could give up, those of the groups inside it among them.

    Of version 1 the plain names are the group's own alone, though its usage is that of all.
    """
    with contextlib.suppress(OSError, ValueError):
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        known = {name: int(value) for name, value in pairs}
        names = "inactive_file", "active_file"
        return sum(known.get(f"total_{name}", known.get(name, 0)) for name in names)
    return 0


@contextlib.contextmanager
def memory_file(num_bytes: int = 0) -> Iterator[str]:
    """Path of a new file of zeros, which other processes here can open as long as the block lasts.

    It has no name in any folder where the system can do that, so no kill leaves it behind.

    Raises:
        OSError: there is no room.
    """
    if hasattr(os, "memfd_create") and os.path.exists("/proc/self/fd"):
        descriptor, folder = os.memfd_create("headrace"), None
        path = f"/proc/{os.getpid()}/fd/{descriptor}"
    else:
        folder = tempfile.mkdtemp(prefix="headrace-")
        path = os.path.join(folder, "file")
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.ftruncate(descriptor, num_bytes)
        if num_bytes and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, num_bytes)  # an error now, not a SIGBUS at a store
        yield path
    finally:
        os.close(descriptor)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

"""Memory limits and allocator settings of a process, and files in memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil

from headrace.processes import control_groups

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGE_BYTES = 1 << 30
SHARED_FOLDER = "/dev/shm"
ENLARGE = "--shm-size=2g (docker run), or an emptyDir of medium Memory at /dev/shm (Kubernetes)"
_OLD_NAMES = "memory.limit_in_bytes", "memory.usage_in_bytes"


def keep_freed_memory() -> None:
    """Let the C allocator reuse large freed blocks instead of returning them to the kernel.

    Activations of a few MB are allocated and freed many times a second; by default glibc maps and
    unmaps each of them, and the page faults cost more than the arithmetic. Only affects glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TRIM_THRESHOLD, _LARGE_BYTES)
        libc.mallopt(_M_TOP_PAD, 16 << 20)


def return_freed_memory() -> None:
    """Return freed memory to the kernel, such as that used at startup. Only affects glibc."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)


def resident_bytes() -> int:
    """Return the resident memory of this process, including shared pages."""
    return int(psutil.Process().memory_info().rss)


def free_bytes() -> int:
    """Return the memory free for processes here, within control group limits."""
    amounts = [int(psutil.virtual_memory().available)]
    for folder in control_groups.folders("memory"):
        for limit, used in (("memory.max", "memory.current"), _OLD_NAMES):
            with contextlib.suppress(OSError, ValueError):  # "max" is not a number
                most, taken = (int((folder / name).read_text()) for name in (limit, used))
                reclaimable = _file_pages(folder)
                amounts.append(max(0, most - taken + reclaimable))
    return min(amounts)


def shared_problem(folder: str = SHARED_FOLDER) -> str:
    """Return why shared memory can't be used, as the end of a sentence; "" if it can."""
    if not sys.platform.startswith("linux"):
        return ""
    try:
        status = os.statvfs(folder)
    except OSError as error:
        return f"can't be used ({os.strerror(error.errno or 0)})"
    if status.f_flag & os.ST_RDONLY:
        return "is mounted read-only"
    return "" if os.access(folder, os.W_OK) else "isn't writable by this user"


def free_shared_bytes(folder: str = SHARED_FOLDER) -> int | None:
    """Return the free bytes of shared memory; None if unlimited or unknown.

    Containers often mount ``/dev/shm`` with 64 MiB.
    """
    if not sys.platform.startswith("linux"):
        return None
    try:
        status = os.statvfs(folder)
    except OSError:
        return 0
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def _file_pages(folder: Path) -> int:
    """Return the bytes of reclaimable file pages of a control group and its subgroups.

    In version 1 the plain names exclude subgroups, although usage includes them.
    """
    with contextlib.suppress(OSError, ValueError):
        pairs = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        statistics = {name: int(value) for name, value in pairs}
        names = "inactive_file", "active_file"
        return sum(statistics.get(f"total_{name}", statistics.get(name, 0)) for name in names)
    return 0


@contextlib.contextmanager
def memory_file(num_bytes: int = 0) -> Iterator[str]:
    """Create a file of zeros that other processes here can open while the block lasts.

    Yields its path. If the system supports it, the file has no name, so it never outlives a kill.

    Raises:
        OSError: there is not enough memory.
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
            os.posix_fallocate(descriptor, 0, num_bytes)  # an error now instead of a SIGBUS later
        yield path
    finally:
        os.close(descriptor)
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)

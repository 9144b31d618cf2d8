"""Memory of a process, and files that live in memory."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Iterator

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3
_LARGE_BYTES = 1 << 30


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

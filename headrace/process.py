"""What a process sets for itself: memory, threads, and an end with its parent."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from multiprocessing import connection, parent_process

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


def yield_to_learner() -> None:
    """Lower this process's priority: where cores are short, the learner never waits for one.

    Actors take what it leaves, which is everything whenever it has to wait for them.
    """
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)


def die_with_parent() -> None:
    """End this child process as soon as its parent is gone, whatever it is doing."""
    parent = parent_process()
    if parent is None:
        return

    def watch() -> None:
        connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, name="headrace-parent-watch", daemon=True).start()


def process_context() -> multiprocessing.context.BaseContext:
    """How processes are started here: by the fork server where there is one."""
    methods = multiprocessing.get_all_start_methods()
    return multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")


@contextlib.contextmanager
def main_hidden() -> Iterator[None]:
    """Keep multiprocessing from running the user's script again in every child.

    What a child needs travels by value (cloudpickle), so a script without
    ``if __name__ == "__main__"`` works, and so does an environment defined in it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


def process_started() -> float:
    """When this process was started, on the clock of ``time.monotonic()``; now where unknown."""
    try:
        with open("/proc/self/stat", encoding="ascii") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        age_s = 0.0
    return time.monotonic() - age_s


@contextlib.contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Let torch use ``count`` threads per operation inside the block."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C or SIGTERM into ``stop``; the second one interrupts as usual."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def handle(number: int, frame: object) -> None:
        stop()
        restore()

    for number in before:
        signal.signal(number, handle)
    try:
        yield
    finally:
        restore()


def cores() -> set[int]:
    """Numbers of the cores that this thread may use."""
    if hasattr(os, "sched_getaffinity"):
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


@contextlib.contextmanager
def pinned(num_cores: int | None, index: int) -> Iterator[None]:
    """Keep this thread, and what it starts, on ``num_cores`` cores inside the block.

    Args:
        num_cores: None, or where a system can't: all cores.
        index: which block of that many cores; they are dealt out in a circle.
    """
    if num_cores is None or not hasattr(os, "sched_setaffinity"):
        yield
        return
    before = cores()
    ordered = sorted(before)
    mine = {ordered[(index * num_cores + i) % len(ordered)] for i in range(num_cores)}
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)

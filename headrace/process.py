"""Processes: how they are started and ended, and what each sets for itself."""

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
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import connection, parent_process
from multiprocessing.process import BaseProcess
from typing import Any

from headrace.errors import ConfigError

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


def start_fork_server(preload: str) -> None:
    """Begin importing the module ``preload`` in the fork server; safe to call repeatedly.

    Returns at once. The first module named before it runs is the one that it has.
    """
    context = process_context()
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        context.set_forkserver_preload([preload])
        with main_hidden():
            forkserver.ensure_running()


class Child:
    """A process of this machine that runs ``work(*args, pipe)`` and ends no later than this one.

    It ignores Ctrl-C, which is for the process that started it to handle, computes with one thread
    and keeps the memory that it frees. It never runs the user's script: ``work`` is a function of a
    module, and what a script defines has to be in ``args`` by value (cloudpickle). ``work`` tells
    of its own errors, each in the way of its pipe.

    Args:
        name: of the process.
        pipe: the child's end, where somebody else has ours; None: a new pipe.
        nice: let others go first where cores are short.
        daemon: it starts no processes of its own.
    """

    def __init__(
        self,
        name: str,
        work: Callable[..., None],
        *args: Any,
        pipe: connection.Connection | None = None,
        nice: bool = True,
        daemon: bool = True,
    ) -> None:
        self.pipe: Any  # our end of it, if it is new
        self.pipe, theirs = (None, pipe) if pipe is not None else multiprocessing.Pipe()
        context: Any = process_context()
        self.process: BaseProcess = context.Process(
            target=_live, args=(work, args, theirs, nice), name=name, daemon=daemon
        )
        with main_hidden():
            self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self.process.pid or 0

    def exit_code(self, timeout_s: float = 10.0) -> int | None:
        """How it ended, once it has; None if it lives after ``timeout_s`` seconds."""
        self.process.join(timeout_s)
        return self.process.exitcode

    def kill(self) -> None:
        """End it at once."""
        end_children([self], 0.0)


def end_children(children: Iterable[Child], timeout_s: float = 5.0) -> None:
    """Close the pipes, which asks them to end; kill those that live ``timeout_s`` seconds later."""
    children = list(children)
    for child in children:
        if child.pipe is not None:
            child.pipe.close()
    deadline = time.monotonic() + timeout_s
    for child in children:
        child.process.join(max(0.0, deadline - time.monotonic()))
    for child in children:
        child.process.kill()
    for child in children:
        child.process.join(10.0)


def _live(
    work: Callable[..., None], args: tuple[Any, ...], pipe: connection.Connection, nice: bool
) -> None:
    """What a :class:`Child` is."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    keep_freed_memory()
    if nice:  # the learner never waits for a core; actors take what it leaves
        with contextlib.suppress(OSError, AttributeError):
            os.nice(10)
    import torch

    torch.set_num_threads(1)
    work(*args, pipe)


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


def num_cores() -> int:
    """Cores that this process may use."""
    return len(cores())


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
    before = sorted(cores())
    mine = {before[(index * num_cores + i) % len(before)] for i in range(num_cores)}
    os.sched_setaffinity(0, mine)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_device(device: str) -> None:
    """Raise ConfigError unless torch can use ``device`` here."""
    import torch

    available = ["cpu"] + [f"cuda:{i}" for i in range(torch.cuda.device_count())]
    if torch.cuda.is_available():
        available.append("cuda")
    if torch.backends.mps.is_available():
        available.append("mps")
    if device not in available:
        raise ConfigError(f"device={device!r} is not available here; choose {', '.join(available)}")

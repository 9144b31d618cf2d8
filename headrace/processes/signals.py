"""Signals that end a run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.processes.ctrl_c import gently

_STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into ``stop``; a second one interrupts.

    A SIGTERM never does: schedulers send several, all of which mean the same.
    The interrupt is an exception (SystemExit where the signal would end the process), so
    ``finally`` blocks run. A SIGHUP that is ignored stays ignored, as ``nohup`` requires. The other
    two are handled even if they were ignored, because background jobs of a shell ignore SIGINT.
    """
    stopped = False

    def handle(number: int, frame: object) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            stop()
        elif number == signal.SIGTERM:
            return
        elif before[number] in (signal.SIG_DFL, signal.SIG_IGN):
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    with _handled(handle) as before:
        yield


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Let Ctrl-C, SIGTERM and SIGHUP wait until the block is over, which should be short."""
    held: list[int] = []
    try:
        with _handled(lambda number, frame: held.append(number)):
            yield
    finally:
        for number in held:
            signal.raise_signal(number)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Give signals back what handled them before, whatever a library puts in its place."""
    known = {number: signal.getsignal(number) for number in _STOPS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in known.items():
                if handler is not None:  # which Python did not set
                    signal.signal(number, handler)


def let_children_hear() -> None:
    """Unblock, for what this thread starts, the signals that this process was started to miss.

    A launcher blocks them in all of Ray's processes (``jobs/ray_node.py``), and a child would
    inherit that: nobody could end it by SIGTERM. Here they still change nothing. They get a
    function of C's to call, as Python sets handlers in the main thread alone, which may be Ray's.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    heard = [number for number in (*_STOPS, signal.SIGUSR1) if number in blocked]
    libc = ctypes.CDLL(None)
    for number in heard:
        libc.signal(int(number), libc.getpid)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, heard)

    def in_child() -> None:
        for number in heard:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    unblock()
    if heard:
        block = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, heard)  # noqa: E731
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


@contextlib.contextmanager
def _handled(handle: Callable[[int, object], None]) -> Iterator[dict[int, Any]]:
    """Handle the signals that end a run; yields what handled them before. No effect in threads."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    known = {number: signal.getsignal(number) for number in _STOPS}
    before = {n: gently(x) for n, x in known.items() if x is not None and not _stays(n, x)}
    in_forks = _sigterm_in_forks()
    in_forks.append(before.get(signal.SIGTERM))
    for number in before:
        signal.signal(number, handle)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if in_forks:  # empty in a fork
            in_forks.pop()


@functools.lru_cache(maxsize=1)
def _sigterm_in_forks() -> list[Any]:
    """Return the SIGTERM handlers that the blocks of ``_handled`` replaced, outermost first.

    From the first call on, forked processes get the outermost one back. Otherwise
    ``multiprocessing`` could not terminate what an environment forks during a run, and would wait
    for it forever. SIGTERM is blocked during the fork, since Python forgets signals that it has
    caught by then.
    """
    handlers, masks = list[Any](), list[Any]()
    if not hasattr(os, "register_at_fork"):
        return handlers

    def block() -> None:
        if handlers:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))

    def unblock() -> None:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        if handlers and handlers[0] is not None:
            signal.signal(signal.SIGTERM, handlers[0])
        handlers.clear()
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    return handlers


def _stays(number: int, handler: Any) -> bool:
    return handler == signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM)

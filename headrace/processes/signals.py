"""Handles signals that stop a run."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from headrace.processes.ctrl_c import EndAtOnce, gently

_STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into ``stop``; a second one interrupts.

    The first one stops all runs that are inside such a block.
    Further SIGTERMs are ignored, because schedulers send several.
    The interrupt is an exception (SystemExit where the signal would end the process), so
    ``finally`` blocks run. A SIGHUP that is ignored stays ignored, as ``nohup`` requires. The other
    two are handled even if they were ignored, because background jobs of a shell ignore SIGINT.
    """
    stopped, of_command = False, signal.getsignal(signal.SIGINT)

    def stop_once() -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            stop()

    def handle(number: int, frame: object) -> None:
        if not stopped:
            if number == signal.SIGINT and isinstance(of_command, EndAtOnce):
                of_command.run_stopped = True
            for one in reversed(_stopped_together()):
                one()
            stop_once()  # missing there while this block begins or ends
        elif number == signal.SIGTERM:
            return
        elif before[number] in (signal.SIG_DFL, signal.SIG_IGN):
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    with contextlib.ExitStack() as stack:
        before = stack.enter_context(_handled(handle))
        if before:
            stack.enter_context(unblocked(before))
            stack.callback(_remove, _stopped_together(), stop_once)
            _stopped_together().append(stop_once)
        yield


@functools.lru_cache(maxsize=1)
def _stopped_together() -> list[Callable[[], None]]:
    """Return the functions that stop the runs in progress, the latest last."""
    return []


@contextlib.contextmanager
def unblocked(numbers: Iterable[int]) -> Iterator[None]:
    """Unblock signals that the parent process may have blocked, in the ``with`` statement.

    If such blocks overlap, the signals are blocked again when the last one ends.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    changed, levels = [number for number in numbers if number in blocked], _unblocked()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, changed)
    levels.append(changed)
    try:
        yield
    finally:
        _remove(levels, changed)
        if levels:
            levels[0].extend(changed)
        else:
            signal.pthread_sigmask(signal.SIG_BLOCK, changed)


@functools.lru_cache(maxsize=1)
def _unblocked() -> list[list[int]]:
    """Return the signals that each block of ``unblocked`` has to block again."""
    return []


def _remove(levels: list[Any], level: Any) -> int | None:
    """Remove this object, and return its index; None if it is missing."""
    place = next((i for i, one in enumerate(levels) if one is level), None)
    if place is not None:
        del levels[place]
    return place


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block, which should be short."""
    pending: list[int] = []
    try:
        with _handled(lambda number, frame: pending.append(number)):
            yield
    finally:
        for number in pending:
            signal.raise_signal(number)


@contextlib.contextmanager
def handlers_kept() -> Iterator[None]:
    """Restore signal handlers after the block, even if a library replaces them."""
    handlers = {number: signal.getsignal(number) for number in _STOPS}
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            for number, handler in handlers.items():
                if handler is not None:  # None: not set by Python
                    signal.signal(number, handler)


def unblock_signals_for_children() -> None:
    """Unblock signals, for processes that this thread starts, that this process ignores.

    A launcher blocks them in all of Ray's processes (``ray/node.py``), and children would
    inherit that, so SIGTERM could not end them. In this process they still have no effect: their
    handler is a C function, because Python only sets handlers in the main thread, which may be
    Ray's.
    """
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    unblocked = [number for number in (*_STOPS, signal.SIGUSR1) if number in blocked]
    libc = ctypes.CDLL(None)
    for number in unblocked:
        libc.signal(int(number), libc.getpid)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, unblocked)

    def in_child() -> None:
        for number in unblocked:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    unblock()
    if unblocked:
        block = lambda: signal.pthread_sigmask(signal.SIG_BLOCK, unblocked)  # noqa: E731
        os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)


@contextlib.contextmanager
def _handled(handle: Callable[[int, object], None]) -> Iterator[dict[int, Any]]:
    """Handle signals that stop a run; yield the previous handlers. No effect in threads."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    handlers = {number: signal.getsignal(number) for number in _STOPS}
    before = {n: gently(x) for n, x in handlers.items() if x is not None and not _stays(n, x)}
    levels = _levels()
    levels.append(before)
    try:
        for number in before:
            signal.signal(number, handle)
        yield before
    finally:
        _leave(levels, before)


def _leave(levels: list[dict[int, Any]], before: dict[int, Any]) -> None:
    """Restore the handlers that a block replaced, or let the next inner block do so.

    A block may end before one that began later, if both are in generators. A signal, or a
    generator that is finalised in another thread, may end this with an exception.
    """
    place = _remove(levels, before)
    if place is not None and place < len(levels):
        levels[place].update(before)
        return
    for number, handler in before.items():
        signal.signal(number, handler)


@functools.lru_cache(maxsize=1)
def _levels() -> list[dict[int, Any]]:
    """Return the handlers that each block of ``_handled`` replaced, outermost first.

    From the first call on, forked processes get the outermost SIGTERM handler back. Otherwise
    ``multiprocessing`` could not terminate what an environment forks during a run, and would wait
    for it forever. SIGTERM is blocked during the fork, since Python forgets signals that it has
    caught by then.
    """
    levels, masks = list[dict[int, Any]](), list[Any]()
    if not hasattr(os, "register_at_fork"):
        return levels

    def block() -> None:
        if levels:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))

    def unblock() -> None:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        outermost = levels[0].get(signal.SIGTERM) if levels else None
        if outermost is not None:
            signal.signal(signal.SIGTERM, outermost)
            for level in levels:
                level[signal.SIGTERM] = outermost
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    return levels


def _stays(number: int, handler: Any) -> bool:
    return handler == signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM)

"""Handles signals that stop a run."""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import functools
import os
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.processes.ctrl_c import EndAtOnce, gently

_STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into ``stop``; a second one interrupts.

    The first one stops all runs that are inside such a block. Further SIGTERMs are ignored, because
    schedulers send several.
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

    def handle(number: int, before: dict[int, Any]) -> None:
        if not stopped:
            if number == signal.SIGINT and isinstance(of_command, EndAtOnce):
                of_command.run_stopped = True
            for block in reversed(_blocks()):
                block.stop()
            stop_once()  # _blocks() no longer lists a block that is ending
        elif number == signal.SIGTERM:
            return
        elif before[number] in (signal.SIG_DFL, signal.SIG_IGN):
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)
        else:
            signal.signal(number, before[number])
            signal.raise_signal(number)

    with _handled(handle, stop_once):
        yield


@contextlib.contextmanager
def signals_held() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block, which should be short."""
    pending: list[int] = []
    try:
        with _handled(lambda number, before: pending.append(number)):
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


@dataclasses.dataclass(eq=False)
class _Block:
    """State of a block that handles signals: what it must restore, and how it stops its run."""

    handlers: dict[int, Any]
    stop: Callable[[], None]
    blocked: list[int] = dataclasses.field(default_factory=list)  # signals to block again


@contextlib.contextmanager
def _handled(
    handle: Callable[[int, dict[int, Any]], None], stop: Callable[[], None] | None = None
) -> Iterator[None]:
    """Handle signals that stop a run. No effect in threads.

    Args:
        handle: called with a signal and the previous handlers.
        stop: stops the run of this block. Signals that the parent process has blocked are then
            unblocked. None: the block has no run.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in _STOPS}
    before = {n: gently(x) for n, x in handlers.items() if x is not None and not _stays(n, x)}
    block, blocks = _Block(before, stop or (lambda: None)), _blocks()
    blocks.append(block)
    try:
        for number in before:
            signal.signal(number, lambda number, frame: handle(number, before))
        if stop is not None:
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
            block.blocked = [number for number in before if number in mask]
            signal.pthread_sigmask(signal.SIG_UNBLOCK, block.blocked)
        yield
    finally:
        _leave(blocks, block)


def _leave(blocks: list[_Block], block: _Block) -> None:
    """Restore what a block changed, or leave that to another block.

    In generators, a block may end before one that began later. The next inner block then restores
    the handlers, and the last block to end blocks signals again. A signal, or finalising a
    generator in another thread, may raise an exception here.
    """
    index = blocks.index(block)
    del blocks[index]
    if blocks:
        blocks[0].blocked += block.blocked
    else:
        signal.pthread_sigmask(signal.SIG_BLOCK, block.blocked)
    if index < len(blocks):
        blocks[index].handlers.update(block.handlers)
        return
    for number, handler in block.handlers.items():
        signal.signal(number, handler)


@functools.lru_cache(maxsize=1)
def _blocks() -> list[_Block]:
    """Return the blocks of :func:`_handled` in progress, outermost first.

    From the first call on, forked processes get the outermost SIGTERM handler back. Otherwise
    ``multiprocessing`` could not terminate processes that an environment forks during a run, and
    would wait for them forever. SIGTERM is blocked during the fork, because the child would forget
    a signal that Python has caught but not yet handled.
    """
    blocks, masks = list[_Block](), list[Any]()
    if not hasattr(os, "register_at_fork"):
        return blocks

    def block() -> None:
        if blocks:
            masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]))

    def unblock() -> None:
        if masks:
            signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    def in_child() -> None:
        outermost = blocks[0].handlers.get(signal.SIGTERM) if blocks else None
        if outermost is not None:
            signal.signal(signal.SIGTERM, outermost)
            for one in blocks:
                one.handlers[signal.SIGTERM] = outermost
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=in_child)
    return blocks


def _stays(number: int, handler: Any) -> bool:
    return handler == signal.SIG_IGN and number not in (signal.SIGINT, signal.SIGTERM)

"""Signals that end a run."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from headrace.exits.ctrl_c import gently

_STOPS = tuple(
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
)


@contextlib.contextmanager
def stop_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Turn the first Ctrl-C, SIGTERM or SIGHUP into ``stop``; the second one interrupts.

    What interrupts is an exception (SystemExit where the signal would end the process), so that
    what stands in a ``finally`` is done. A signal that is ignored, as by ``nohup``, stays so.
    """
    stopped = False

    def handle(number: int, frame: object) -> None:
        nonlocal stopped
        if not stopped:
            stopped = True
            stop()
        elif before[number] == signal.SIG_DFL:
            raise SystemExit(128 + number)
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


@contextlib.contextmanager
def _handled(handle: Callable[[int, object], None]) -> Iterator[dict[int, Any]]:
    """Handle the signals that end a run; yields what handled them before. No effect in threads."""
    if threading.current_thread() is not threading.main_thread():
        yield {}
        return
    known = {number: signal.getsignal(number) for number in _STOPS}
    before = {n: gently(x) for n, x in known.items() if x not in (signal.SIG_IGN, None)}
    for number in before:
        signal.signal(number, handle)
    try:
        yield before
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

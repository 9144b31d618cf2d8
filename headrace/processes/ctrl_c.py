"""Handles Ctrl-C at the command line: exit status 130, and one line if nothing was saved."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

STATUS = 130  # the convention of shells
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
_BLOCKED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LATER = ("plan", "bench", "launch", "watch")  # they stop their own processes


def ends_in_one_line(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command line: ``main(argv)`` in the main thread.

    Until a run has something to save, Ctrl-C ends the process at once: an exception in the middle
    of an import would print a page of text. A run handles Ctrl-C itself
    (:func:`~headrace.processes.signals.stop_signals`).
    """

    @functools.wraps(main)
    def ended(argv: list[str] | None = None) -> int:
        before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or before is not signal.default_int_handler:  # ignored in background jobs
            try:
                return main(argv)
            except KeyboardInterrupt:  # of a run, which handles the signal nevertheless
                _print_interrupted()
                return STATUS
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _BLOCKED)  # inherited from a launcher
        command = (sys.argv[1:] if argv is None else argv)[:1]
        handler = EndAtOnce()
        try:
            if not set(command) & set(_LATER):
                signal.signal(signal.SIGINT, handler)
            status = main(argv)
            return STATUS if handler.run_stopped and status == 0 else status
        except KeyboardInterrupt:
            _print_interrupted()
            return STATUS
        finally:
            signal.signal(signal.SIGINT, before)

    return ended


class EndAtOnce:
    """Signal handler that exits this process; its descendants end by themselves.

    Attributes:
        run_stopped: Ctrl-C stopped a run, which handled the signal instead and saved.
    """

    def __init__(self) -> None:
        self.run_stopped = False

    def __call__(self, number: int, frame: object) -> None:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        _print_interrupted()
        server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
        if (pid := getattr(server, "_forkserver_pid", None)) is not None:  # it may be importing
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        os._exit(STATUS)


def gently(handler: Any) -> Any:
    """Replace the handler that exits at once by the default one, which raises."""
    return signal.default_int_handler if isinstance(handler, EndAtOnce) else handler


def _print_interrupted() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os.write(2, b"headrace: interrupted\n")

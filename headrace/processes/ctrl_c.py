"""Ctrl-C at the command line: one line and exit status 130, whatever is being done."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any

STATUS = 130  # as shells have it
_SHOW_CURSOR = b"\r\x1b[K\x1b[?25h"
_LATER = ("plan", "bench", "launch", "watch")  # they start what they have to end themselves


def ends_in_one_line(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command line: ``main(argv)`` in the main thread.

    Until a run has something to save, Ctrl-C ends the process where it is: an exception in the
    middle of an import, which libraries turn into others, would be a page of text. A run handles
    it itself (``process.stop_signals``).
    """

    @functools.wraps(main)
    def ended(argv: list[str] | None = None) -> int:
        before = signal.getsignal(signal.SIGINT)
        in_main = threading.current_thread() is threading.main_thread()
        if not in_main or before is not signal.default_int_handler:  # it is ignored, as by nohup
            return main(argv)
        command = (sys.argv[1:] if argv is None else argv)[:1]
        try:
            if not set(command) & set(_LATER):
                signal.signal(signal.SIGINT, end_at_once)
            return main(argv)
        except KeyboardInterrupt:
            _say()
            return STATUS
        finally:
            signal.signal(signal.SIGINT, before)

    return ended


def end_at_once(number: int, frame: object) -> None:
    """A handler that ends this process; what it has started ends by itself."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    _say()
    server = getattr(sys.modules.get("multiprocessing.forkserver"), "_forkserver", None)
    if (pid := getattr(server, "_forkserver_pid", None)) is not None:  # it may still import
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
    os._exit(STATUS)


def gently(handler: Any) -> Any:
    """What handles Ctrl-C once there is something to save: an exception."""
    return signal.default_int_handler if handler is end_at_once else handler


def _say() -> None:
    with contextlib.suppress(OSError):
        if os.isatty(2):
            os.write(2, _SHOW_CURSOR)
        os.write(2, b"headrace: interrupted\n")

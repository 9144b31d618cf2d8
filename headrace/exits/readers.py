"""A reader that has seen enough, as ``headrace --help | head``: no traceback, and its status."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable

STATUS = 141  # as shells have it for a program that SIGPIPE ended


def ends_with_its_reader(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command line: ``main(argv)``, whose output may be closed at any time."""

    @functools.wraps(main)
    def ended(argv: list[str] | None = None) -> int:
        try:
            try:
                return main(argv)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            if not _is_left():  # another pipe, of a process
                raise
            # The interpreter flushes once more at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return STATUS

    return ended


def _is_left() -> bool:
    """Whether nobody reads what this process prints; whoever does is shown an empty line."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except BrokenPipeError:
        return True
    return False

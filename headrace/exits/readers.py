"""A reader that has seen enough, as in ``headrace … | head``: no traceback, and runs go on."""

from __future__ import annotations

import functools
import io
import os
import sys
from collections.abc import Callable

STATUS = 141  # as shells have it for a program that SIGPIPE ended


def ends_with_its_reader(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command line: ``main(argv)``, whose output may be closed at any time."""

    @functools.wraps(main)
    def ended(argv: list[str] | None = None) -> int:
        replace_letters()
        try:
            try:
                return main(argv)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            if not _is_left():  # another pipe, of a process
                raise
            read_by_nobody()
            return STATUS

    return ended


def replace_letters() -> None:
    """Make stdout and stderr replace characters that their encoding lacks instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def read_by_nobody() -> None:
    """Let all further output of this process go nowhere; the interpreter flushes at its end."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_left() -> bool:
    """Whether nobody reads what this process prints; whoever does is shown an empty line."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # it is no file, or closed
        return False
    return False

"""Handles output that can't be written: a closed pipe (``headrace … | head``) or a full disk."""

from __future__ import annotations

import contextlib
import errno
import functools
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)
STATUS = 141  # the convention of shells for SIGPIPE


def ends_with_its_reader(main: Callable[..., int]) -> Callable[..., int]:
    """Decorate a command line: ``main(argv)``, whose output may be closed at any time."""

    @functools.wraps(main)
    def ended(argv: list[str] | None = None) -> int:
        replace_unencodable()
        try:
            try:
                return main(argv)
            finally:
                if sys.stdout is not None:
                    sys.stdout.flush()
        except BrokenPipeError:
            if not _is_unread():  # the pipe of another process
                raise
            discard_output()
            return STATUS
        except OSError as error:
            if error.errno not in _UNWRITABLE or error.filename is not None:
                raise
            discard_output()
            with contextlib.suppress(OSError):
                print(f"headrace: the output can't be written: {error.strerror}", file=sys.stderr)
            return 1

    return ended


def replace_unencodable() -> None:
    """Make stdout and stderr replace characters that their encoding lacks instead of raising."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


class GuardedStream:
    """A text stream that turns all failed writes into BrokenPipeError.

    Args:
        stream: standard output; None if the process has none.
    """

    def __init__(self, stream: TextIO | None) -> None:
        self._stream = stream or io.StringIO()

    def write(self, text: str) -> int:
        """Write text."""
        with _as_broken_pipe():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush the buffer."""
        with _as_broken_pipe():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class _BestEffortStream:
    """A text stream that ignores a full disk and I/O errors, but not a closed pipe."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text as far as possible."""
        with _writable_or_ignored():
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Flush the buffer as far as possible."""
        with _writable_or_ignored():
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _writable_or_ignored() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _UNWRITABLE:
            raise


@contextlib.contextmanager
def output_best_effort() -> Iterator[None]:
    """Ignore a full disk under stdout or stderr inside the block.

    A run must not stop because environments or callbacks can't print.
    """
    before = sys.stdout, sys.stderr
    ours: list[Any] = [_wrapped(stream) for stream in before]
    sys.stdout, sys.stderr = ours
    try:
        yield
    finally:
        if sys.stdout is ours[0]:  # otherwise replaced inside the block
            sys.stdout = before[0]
        if sys.stderr is ours[1]:
            sys.stderr = before[1]


def _wrapped(stream: Any) -> Any:
    if stream is None or isinstance(stream, _BestEffortStream):
        return stream
    return _BestEffortStream(stream)


def print_to_stderr(line: str) -> None:
    """Print a message of headrace to standard error, and ignore failures."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"headrace: {line}", file=sys.stderr, flush=True)


def print_line(line: str) -> None:
    """Print a line to standard output, and ignore a full disk."""
    with output_best_effort():
        print(line, flush=True)


@contextlib.contextmanager
def _as_broken_pipe() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise BrokenPipeError(*error.args) from error


def flush_output() -> None:
    """Flush stdout and stderr as far as possible."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


def discard_output() -> None:
    """Discard all further output of this process; the interpreter still flushes at exit."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    with contextlib.suppress(AttributeError, OSError, ValueError):  # not a file, or closed
        os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _is_unread() -> bool:
    """Return True if stdout's reader is gone; a reader receives an empty line."""
    try:
        os.write(sys.stdout.fileno(), b"\n")
    except BrokenPipeError:
        return True
    except (AttributeError, OSError, ValueError):  # not a file, or closed
        return False
    return False

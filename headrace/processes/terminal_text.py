"""Escapes control characters in output, so that untrusted names can't control the terminal."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from typing import Any, TextIO

# Control characters except line breaks and tabs, and characters that reorder text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
# What Rich writes to a terminal: colours, cursor movements, erased lines, a hidden cursor.
_OF_RICH = re.compile(r"(\x1b\[(?:[0-9;]*m|[0-9]*[ABCDGK]|\?25[hl])|\r)")


# Carriage returns of progress bars, which can't hide text that was printed in the same call.
_AT_THE_ENDS = re.compile(r"(^\r+|\r+$|\r+(?=\n))")


def printable(text: str) -> str:
    r"""Replace control characters with escapes such as ``\x1b``."""
    return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


class PrintableStream:
    """A text stream that escapes control characters.

    Args:
        stream: standard output or standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write text; a terminal also gets the sequences that Rich uses.

        Files and pipes keep carriage returns at either end of the text, for progress bars.
        """
        if _CONTROL.search(text) is None:
            return self._stream.write(text)
        styled = self._stream.isatty() or "FORCE_COLOR" in os.environ
        parts = (_OF_RICH if styled else _AT_THE_ENDS).split(text)
        self._stream.write("".join(x if i % 2 else printable(x) for i, x in enumerate(parts)))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def printable_output() -> Iterator[None]:
    """Escape control characters in standard output and standard error inside the block."""
    before = sys.stdout, sys.stderr
    with contextlib.ExitStack() as stack:
        for name, stream in zip(("stdout", "stderr"), before, strict=True):
            if stream is not None:
                ours = PrintableStream(stream)
                setattr(sys, name, ours)
                stack.callback(_restore, name, ours, stream)
        yield


def _restore(name: str, ours: object, stream: object) -> None:
    if getattr(sys, name) is ours:  # otherwise it was replaced inside the block
        setattr(sys, name, stream)

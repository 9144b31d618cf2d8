"""Removes what tests import from benchmarks/book, because child processes can't import it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

import gymnasium


@contextlib.contextmanager
def book_forgotten() -> Iterator[None]:
    """After the block, remove the modules of the book and the environments that they registered."""
    try:
        yield
    finally:
        for name, spec in list(gymnasium.registry.items()):
            if _is_of_book(spec.entry_point):
                del gymnasium.registry[name]
        for name in list(sys.modules):
            if name.partition(".")[0] == "book":
                del sys.modules[name]


def _is_of_book(entry_point: Any) -> bool:
    """Return whether an environment is created by a function or class of the book."""
    maker = getattr(entry_point, "func", entry_point)  # of a functools.partial
    return str(getattr(maker, "__module__", maker)).startswith("book.")

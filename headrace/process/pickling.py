"""Finds the unpicklable part of an object, and restores ``__main__`` in other processes."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
from collections.abc import Iterator
from typing import Any

import cloudpickle

_DEEPEST = 8


def unpicklable_part(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """Find the innermost part of an object that can't be pickled; returns its path and itself.

    The search covers attributes, items, arguments of partials, and variables that functions and
    classes of a script use.

    Args:
        value: an object that can't be pickled.
        path: name of the object, for messages.
    """
    for name, part in _parts(value, path) if depth < _DEEPEST else ():
        try:
            cloudpickle.dumps(part)
        except Exception:  # any object may raise anything
            return unpicklable_part(part, name, depth + 1)
    return path, value


def _parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        yield from ((f"{path}[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{path}[{i}]", part) for i, part in enumerate(value))
    elif isinstance(value, functools.partial):
        yield from _parts(value.keywords, path)
        yield from _parts(value.args, path)
        yield path, value.func
    elif inspect.isfunction(value):
        used = inspect.getclosurevars(value)
        yield from {**used.nonlocals, **used.globals}.items()
        yield from _parts(value.__defaults__ or (), f"the defaults of {path}")
        yield from _parts(value.__kwdefaults__ or {}, f"the defaults of {path}")
    elif inspect.ismethod(value):
        yield path, value.__self__
    elif isinstance(value, type):
        for name, part in vars(value).items():
            plain = part.__func__ if isinstance(part, staticmethod | classmethod) else part
            yield f"{path}.{name}", plain
    elif hasattr(value, "__dict__"):
        yield from ((f"{path}.{name}", part) for name, part in vars(value).items())


def restore_main(make: Any) -> None:
    """Copy objects that were sent by value from a script into this process's ``__main__``.

    An environment that starts processes (``multiprocessing.Pool``) pickles functions of its script
    by name, as ``__main__.name``. Nothing changes in the process of the script itself.

    Args:
        make: the class or function that makes an environment, or a partial of one.
    """
    main = vars(sys.modules["__main__"])
    while isinstance(make, functools.partial):
        make = make.func
    found = {getattr(make, "__name__", ""): make}
    members = [vars(kind).values() for kind in make.__mro__] if isinstance(make, type) else []
    for function in (make, *itertools.chain(*members)):
        if getattr(function, "__module__", None) == "__main__":
            found |= getattr(function, "__globals__", {})
    for name, value in found.items():
        if getattr(value, "__module__", None) == "__main__" and name.isidentifier():
            main.setdefault(name, value)

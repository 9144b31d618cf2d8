"""Objects that cannot be sent to another process, and the part of them that is the reason."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from typing import Any

import cloudpickle

_DEEPEST = 8


def unpicklable_part(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """The innermost part of an object that can't be pickled, and where it is.

    Attributes, items, arguments of partials, and variables that functions and classes of a script
    use are searched.

    Args:
        value: what can't be pickled. path: what it is called.
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

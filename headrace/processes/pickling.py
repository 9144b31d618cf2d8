"""Finds the unpicklable part of an object, and restores scripts in other processes."""

from __future__ import annotations

import functools
import inspect
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

import cloudpickle

SCRIPT = "_headrace_script_"  # prefix of the module names under which scripts are imported
_DEEPEST = 8


def unpicklable_part(value: Any, path: str, depth: int = 0) -> tuple[str, Any]:
    """Find the innermost part of an object that can't be pickled; return its path and itself.

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


def restore_scripts(make: Any) -> None:
    """Copy objects that were sent by value from a script into this process's modules.

    An environment that starts processes (``multiprocessing.Pool``) pickles functions of its script
    by name, as ``__main__.name`` or in the module under which the script was imported. Nothing
    changes in the process of the script itself.

    Args:
        make: the class or function that makes or wraps an environment, or a partial of one.
    """
    while isinstance(make, functools.partial):
        make = make.func
    globals_by_name = {getattr(make, "__name__", ""): make}
    members = [vars(kind).values() for kind in make.__mro__] if isinstance(make, type) else []
    for function in (make, *itertools.chain(*members)):
        if _is_of_script(function):
            globals_by_name |= getattr(function, "__globals__", {})
    for name, value in globals_by_name.items():
        if _is_of_script(value) and name.isidentifier():
            vars(_module(value.__module__)).setdefault(name, value)


def _is_of_script(value: Any) -> bool:
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and (module == "__main__" or module.startswith(SCRIPT))


def _module(name: str) -> types.ModuleType:
    """Return a module, created empty if this process hasn't imported it."""
    if name not in sys.modules:
        sys.modules[name] = types.ModuleType(name)
        cloudpickle.register_pickle_by_value(sys.modules[name])
    return sys.modules[name]


def missing_module_message(error: ModuleNotFoundError) -> str:
    """Return an error message about a module that this process can't import."""
    return f"{error} there: install it on every node (objects that your script defines are sent)"

"""Resolves the names of built-in and custom algorithms to classes, and back.

A custom algorithm is a subclass of :class:`Hyperparameters` in a user's script, notebook, module
or installed package. ``config.json`` names it as ``module:Class``, with the file that defines it
unless the module is installed.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from typing import Any, ClassVar, get_origin

from headrace import schedules
from headrace.algos import ALGORITHMS, installed
from headrace.algos.common import Hyperparameters
from headrace.envs import scripts
from headrace.envs.names import import_path
from headrace.errors import ConfigError, nearest, shown
from headrace.validation import aliases
from headrace.validation.fields import check_fields
from headrace.validation.names import imported
from headrace.validation.type_checks import ScheduleBase

FUNCTION = "function"  # the key of the name of a schedule's function
RESERVED = ("name", "file")  # keys next to the hyperparameters in config.json


def short_name(kind: type[Hyperparameters]) -> str:
    """Return the command-line name of a built-in algorithm, or the class name of a custom one."""
    built_in = (name for name, one in ALGORITHMS.items() if one is kind)
    return next(built_in, kind.__name__)


def path_of(kind: type[Hyperparameters]) -> str:
    """Return the name in ``config.json``: of a built-in algorithm, or ``module:Class``."""
    if kind in ALGORITHMS.values():
        return short_name(kind)
    return scripts.name_of(import_path(kind))


def fields_of(algo: Hyperparameters) -> dict[str, Any]:
    """Return the hyperparameters by name, in the form that ``config.json`` stores.

    Piecewise schedules are text. A function is its name and the file that defines it.
    """
    written = {name: _written(one) for name, one in schedules.of(algo).items()}
    return dataclasses.asdict(schedules.at_start(algo)) | written


def _written(schedule: ScheduleBase) -> Any:
    if not isinstance(schedule, schedules.Function):
        return str(schedule)
    function = schedule.function
    named = {FUNCTION: scripts.name_of(import_path(function))}
    file = scripts.file_of(function)
    return named if file is None else named | {"file": file}


def function_of(setting: str, written: Any) -> Any:
    """Import a function that :func:`fields_of` wrote; returns anything else unchanged.

    Raises:
        ConfigError: the function can't be found.
    """
    if not isinstance(written, dict) or FUNCTION not in written:
        return written
    value = scripts.found(setting, written[FUNCTION], written.get("file"))
    if not isinstance(value, str):
        return value
    return imported(f"{setting}={shown(value)}", value)


def is_called(name: str, kind: type[Hyperparameters]) -> bool:
    """Return True if a name from ``config.json`` means this class, even if the class has moved."""
    return name.rpartition(":")[2] == path_of(kind).rpartition(":")[2]


def file_of(kind: type[Hyperparameters]) -> str | None:
    """Return the file that defines a custom algorithm; None if it is built in or installed."""
    return None if kind in ALGORITHMS.values() else scripts.file_of(kind)


def find(name: str, file: str | None = None) -> type[Hyperparameters]:
    """Find the class of an algorithm by name.

    Args:
        name: a built-in algorithm, an entry point of an installed package, ``module:Class`` or
            ``file.py:Class``. Custom code is imported.
        file: the script that defines ``__main__:Class``, as stored in ``config.json``.

    Raises:
        ConfigError: the algorithm doesn't exist, or the name is not that of an algorithm.
    """
    if name.lower() in ALGORITHMS:
        return ALGORITHMS[name.lower()]
    if name.endswith(".py"):
        raise scripts.without_name("algo", name)
    kind = _imported(name, file) if ":" in name else _installed(name)
    check_class(kind, f"algo={shown(name)}")
    return kind  # type: ignore[no-any-return]


def instance(algo: Any) -> Any:
    """Create the named algorithm with default hyperparameters; return other objects unchanged."""
    return find(algo)() if isinstance(algo, str) else algo


def check_order(env: Any, algo: Any, function: str) -> None:
    """Raise ConfigError if ``function`` got an algorithm as the environment, the first argument."""
    is_class = isinstance(env, type) and issubclass(env, Hyperparameters)
    is_name = isinstance(env, str) and env.lower() in ALGORITHMS
    if not (is_name or is_class or isinstance(env, Hyperparameters)):
        return
    first = shown(algo) if isinstance(algo, str) else "env"
    kind = env if is_class else type(env)
    second = shown(env) if is_name else f"hr.{kind.__name__}()"
    raise ConfigError(
        f"env={second} is an algorithm, but the environment is the first argument; write "
        f"hr.{function}({first}, {second})"
    )


def check(algo: Any) -> None:
    """Raise ConfigError unless this is an algorithm that can train."""
    kind = type(algo)
    if not isinstance(algo, Hyperparameters):
        names = ", ".join(cls.__name__ for cls in ALGORITHMS.values())
        raise ConfigError(
            f"algo={shown(algo)} must be an instance of one of {names}, or of a custom subclass of "
            "hr.Hyperparameters"
        )
    if kind not in ALGORITHMS.values():
        check_class(kind, f"algo={kind.__name__}")
        check_fields(algo)  # its own __post_init__ may not do it


def check_class(kind: Any, setting: str) -> None:
    """Raise ConfigError unless this is the class of an algorithm.

    Args:
        setting: the setting and its value, for the message.
    """
    if not (isinstance(kind, type) and issubclass(kind, Hyperparameters)):
        raise ConfigError(f"{setting} must be a subclass of hr.Hyperparameters")
    plain = [base for base in kind.__mro__ if issubclass(base, Hyperparameters)]
    for base in plain:
        _check_fields_of(base, setting)
    without = kind.loss is Hyperparameters.loss and kind.terms is Hyperparameters.terms
    if without:
        raise ConfigError(
            f"{setting} has no loss: {kind.__name__} must define loss(self, policy, batch, state) "
            "or terms(self, outputs, batch, state)"
        )


def _check_fields_of(kind: type, setting: str) -> None:
    """Raise ConfigError if a class has hyperparameters that Python doesn't turn into fields."""
    is_decorated = "__dataclass_fields__" in vars(kind)
    own = {name for name, hint in inspect.get_annotations(kind).items() if not _is_classvar(hint)}
    if own and not is_decorated:
        raise ConfigError(
            f"{setting} is invalid: {kind.__name__} defines {', '.join(sorted(own))}, so it needs "
            "@dataclass(frozen=True) above the class"
        )
    fields = {field.name for field in dataclasses.fields(kind)}
    for name in sorted(fields & vars(kind).keys() - own):
        raise ConfigError(
            f"{setting} is invalid: {kind.__name__}.{name} needs its type, as in "
            f"'{name}: {type(vars(kind)[name]).__name__} = …', to become the default"
        )
    for name in sorted(fields & set(RESERVED)):
        raise ConfigError(f"{setting} is invalid: a hyperparameter can't have the name {name!r}")


def _is_classvar(hint: Any) -> bool:
    """Return True if an annotation, which may be text, is a ClassVar."""
    if isinstance(hint, str):
        return hint.split("[")[0].rpartition(".")[2] == "ClassVar"
    return hint is ClassVar or get_origin(hint) is ClassVar


def _installed(name: str) -> Any:
    """Load the class that an installed package registers under this name."""
    offered = installed()
    if name not in offered:
        names = [*ALGORITHMS, *offered]
        near = "" if aliases.is_other_algorithm(name) else nearest(name.lower(), names)
        raise ConfigError(
            f"algo={shown(name)} is unknown; choose {', '.join(names)}, or name a custom algorithm "
            f"as module:Class or file.py:Class.{near}"
        )
    try:
        return offered[name].load()
    except Exception as error:  # an installed package may raise anything
        raise ConfigError(
            f"algo={shown(name)} can't be imported from {offered[name].value} "
            f"({type(error).__name__}: {error})"
        ) from error


def _imported(name: str, file: str | None) -> Any:
    """Import the object that ``module:Name`` names from a module or script."""
    module, _, path = name.rpartition(":")
    if module == "__main__" and file is None:  # defined in this notebook, if anywhere
        own = _attribute(sys.modules["__main__"], path)
        if own is not None:
            return own
    value = scripts.found("algo", name, file)
    return imported(f"algo={shown(name)}", name) if isinstance(value, str) else value


def _attribute(owner: Any, path: str) -> Any:
    for part in path.split("."):
        owner = getattr(owner, part, None)
    return owner

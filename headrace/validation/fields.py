"""Validates fields and arguments by their annotations, and reports the first invalid one.

Ints become floats where floats are expected; bools are not numbers, and 1.0 is not an int. NumPy
numbers become Python numbers, lists become tuples, and paths become strings. NaN and infinity are
invalid unless a range allows them.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar
from typing import get_type_hints as hints_of

from headrace.errors import ConfigError, shown
from headrace.validation import owners
from headrace.validation.type_checks import (
    InvalidValue,
    ScheduleBase,
    TypeConstraint,
    fit,
    fit_sample,
    read,
)

T = TypeVar("T")
P = ParamSpec("P")


def check_fields(settings: Any, prefix: str = "") -> None:
    """Raise ConfigError unless each field of a dataclass matches its annotation.

    Annotations of base classes apply even if the class overrides the default.

    Args:
        prefix: text before a field's name in messages.
    """
    cls: Any = type(settings)
    for name, kinds, default in _fields(cls):
        given = value = getattr(settings, name)
        for kind in kinds:
            value = _checked(prefix + name, kind, given, default)
        if value is not given:
            object.__setattr__(settings, name, value)  # the dataclass may be frozen


def float_fields(cls: Any) -> list[str]:
    """Return the names of a dataclass's float fields."""
    return [name for name, kinds, _ in _fields(cls) if any(float in k.options for k in kinds)]


def check_value(cls: Any, name: str, value: Any, varies: bool = False) -> None:
    """Raise ConfigError unless a value is valid for a field of a dataclass.

    Args:
        varies: the value is one of a schedule's.
    """
    for kind in next(kinds for field, kinds, _ in _fields(cls) if field == name):
        try:
            fit_sample(kind, value) if varies else fit(kind, value)
        except InvalidValue as misfit:
            raise ConfigError(f"{name}={shown(value)} must be {misfit.words}") from None


def settings() -> Callable[[type[T]], type[T]]:
    """Make a dataclass raise a ConfigError for arguments that don't match its fields.

    A class attribute ``USAGE`` is the sentence for a first argument that can't be a number.
    """

    def decorate(cls: type[T]) -> type[T]:
        made: Any = cls.__init__
        signature = inspect.signature(made)
        known = signature.parameters.keys() - {"self"}
        needed = {n for n in known if signature.parameters[n].default is inspect.Parameter.empty}

        @functools.wraps(made)
        def __init__(self: Any, *args: Any, **values: Any) -> None:
            if args or not needed <= values.keys() <= known:
                _check_first(cls, *args[:1])
                _bind(cls.__name__, signature, (self, *args), values)
            made(self, *args, **values)

        cls.__init__ = __init__  # type: ignore[method-assign]
        return cls

    return decorate


def check_arguments(cls: Any, args: tuple[Any, ...], values: dict[str, Any]) -> None:
    """Raise ConfigError for arguments that a dataclass's ``__init__`` doesn't take."""
    if args or not values.keys() <= cls.__dataclass_fields__.keys():
        _check_first(cls, *args[:1])
        _bind(cls.__name__, inspect.signature(cls.__init__), (None, *args), values)


def checked(function: Callable[P, T]) -> Callable[P, T]:
    """Return a function whose arguments are validated by their annotations."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

    @functools.wraps(function)
    def call(*args: P.args, **values: P.kwargs) -> T:
        bound = _bind(name, signature, args, values)
        for argument, kind in _arguments(function).items():
            if argument in bound.arguments:
                default = signature.parameters[argument].default
                value = _checked(argument, kind, bound.arguments[argument], default)
                bound.arguments[argument] = value
        return function(*bound.args, **bound.kwargs)

    return call


def check(name: str, hint: Any, value: Any) -> Any:
    """Return the value converted to an annotation's type.

    Raises:
        ConfigError: it is invalid; the message has the nearest valid value, if there is one.
    """
    return _checked(name, read(hint), value, None)


def _checked(name: str, kind: TypeConstraint, value: Any, default: Any) -> Any:
    try:
        return fit(kind, value)
    except InvalidValue as misfit:
        words = misfit.words
        if misfit.near is not None and len(str(misfit.near)) <= 100:
            words += f" (nearest: {misfit.near})"
        elif isinstance(default, int | float) and not isinstance(default, bool):
            words += f" (the default is {default})"
        text = str(value) if isinstance(value, ScheduleBase) else shown(value)
        raise ConfigError(f"{name}={text} must be {words}") from None


def _check_first(cls: Any, first: Any = 0.0) -> None:
    """Raise ConfigError if a class has a ``USAGE`` and its first argument can't be a number.

    Schedules, which are functions and text that begins with a number, stand for one.
    """
    usage = getattr(cls, "USAGE", "")
    is_name = isinstance(first, str) and not first[:1].isdigit()
    if usage and (is_name or isinstance(first, type) or hasattr(first, "reset")):
        raise ConfigError(f"{cls.__name__}({shown(first)}) is invalid: {usage}")


def _bind(
    name: str,
    signature: inspect.Signature,
    args: tuple[Any, ...],
    values: dict[str, Any],
) -> inspect.BoundArguments:
    allowed = signature.parameters
    if not any(p.kind is p.VAR_KEYWORD for p in allowed.values()):
        for unknown in values.keys() - allowed.keys():
            algorithm = owners.algorithm_in([*args, *values.values()])
            words = owners.explained(unknown, allowed, algorithm)
            raise ConfigError(f"setting {unknown!r} is unknown to {name}.{words}")
    try:
        return signature.bind(*args, **values)
    except TypeError as error:
        raise ConfigError(f"{name}: {error}") from None


@functools.cache
def _arguments(function: Any) -> dict[str, TypeConstraint]:
    """Return the hints of the arguments that have annotations."""
    own = {
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.kind is not p.VAR_KEYWORD
    }
    named = {k: v for k, v in function.__annotations__.items() if k in own}
    source = types.SimpleNamespace(__annotations__=named)
    hints = hints_of(source, function.__globals__, include_extras=True)
    return {name: read(hint) for name, hint in hints.items()}


def _hints_of(cls: Any) -> dict[str, Any]:
    """Return a class's annotations; empty if they can't be resolved, as for some scripts'
    classes.
    """
    try:
        return hints_of(cls, include_extras=True)
    except NameError:
        return {}  # pickled by value, without the script's imports; already checked in the parent


@functools.cache
def _fields(cls: Any) -> list[tuple[str, list[TypeConstraint], Any]]:
    """Return (name, annotation, default) of each field; bases first, because they have the
    ranges.
    """
    fields_by_name: dict[str, list[TypeConstraint]] = {
        field.name: [] for field in dataclasses.fields(cls)
    }
    for base in reversed(cls.__mro__):
        own = fields_by_name.keys() & inspect.get_annotations(base).keys()
        hints = _hints_of(base) if own else {}
        for name in own & hints.keys():
            fields_by_name[name].append(read(hints[name]))
    return [(f.name, fields_by_name[f.name], f.default) for f in dataclasses.fields(cls)]

"""Checks a value against an annotation, and converts it."""

from __future__ import annotations

import collections.abc
import numbers
import os
import sys
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from headrace.errors import nearest, shown
from headrace.validation.ranges import Constraint, PythonOnly, Range


class ScheduleBase:
    """Base class of schedules, values that change during a run; every sample must be valid."""

    def at(self, env_steps: int, total_steps: float) -> float:
        """Return the value after ``env_steps`` environment steps of a run."""
        raise NotImplementedError

    def samples(self) -> Iterable[float]:
        """Return values to validate, including the smallest and largest."""
        raise NotImplementedError


class InvalidValue(Exception):
    """Error with a description of valid values, and the nearest valid value or None."""

    def __init__(self, words: str, near: Any = None) -> None:
        self.words, self.near = words, near


@dataclass(frozen=True)
class TypeConstraint:
    """Parsed annotation: one of these types, within the limits unless it is a constant."""

    options: tuple[Any, ...]
    limits: tuple[Range | Constraint, ...]


def read(hint: Any) -> TypeConstraint:
    """Parse an annotation."""
    extra: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, extra = hint.__origin__, hint.__metadata__
    options = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    options += tuple(x.type for x in extra if isinstance(x, PythonOnly))
    if Path in options:  # before str, because it accepts paths, too
        options = tuple(sorted(options, key=lambda x: x is not Path))
    return TypeConstraint(options, tuple(x for x in extra if isinstance(x, Range | Constraint)))


def fit(kind: TypeConstraint, value: Any) -> Any:
    """Convert a value to an annotation's type; raises :class:`InvalidValue`."""
    if isinstance(value, ScheduleBase) and float in kind.options:
        for one in value.samples():
            try:
                fit_sample(kind, one)
            except InvalidValue as misfit:
                raise InvalidValue(f"{misfit.words} in all of its values, not {one:g}") from None
        return value
    limits, misfits = kind.limits, []
    for option in kind.options:
        fixed = option is type(None) or get_origin(option) is Literal
        try:
            return _within(() if fixed else limits, option, value)
        except InvalidValue as misfit:
            misfits.append(misfit)
    near = [m.near for m in misfits if m.near is not None]
    words = [limit.words for limit in limits if isinstance(limit, Constraint) and limit.whole]
    words = words or [misfit.words for misfit in misfits]
    raise InvalidValue(", or ".join(dict.fromkeys(words)), near[0] if near else None)


def fit_sample(kind: TypeConstraint, value: float) -> None:
    """Raise :class:`InvalidValue` unless a schedule may take a value.

    Schedules may reach the lower end of a range that excludes it, because they often end there.
    """
    ends = [x.low for x in kind.limits if isinstance(x, Range) and x.above]
    if value not in ends:
        fit(kind, value)


def _within(limits: tuple[Any, ...], option: Any, value: Any) -> Any:
    """Check a value of one type against its limits."""
    fit_type, a_type = _TYPES.get(option, (None, ""))
    try:
        nearest_valid = fit_type(value) if fit_type else _of_other_type(option, value)
    except InvalidValue as misfit:
        near = misfit.near
        if option in (int, float):
            near = limits[0].nearest(value) if limits else None
        words = limits[0].says(value) if limits and option in (int, float) else ""
        raise InvalidValue(
            ", ".join(filter(None, [misfit.words, words])), _typed(option, near)
        ) from None
    for limit in limits:
        if not limit.holds(nearest_valid):
            words = limit.says(nearest_valid)
            if option in (int, float) and nearest_valid != nearest_valid:
                words = f"{a_type}, {words}"
            raise InvalidValue(words, _typed(option, limit.nearest(nearest_valid)))
    if not limits and option is float and not abs(nearest_valid) <= sys.float_info.max:
        raise InvalidValue("a finite number")
    return nearest_valid


def _typed(option: Any, near: Any) -> Any:
    if near is None or option not in (int, float):
        return near
    return round(near) if option is int else float(near)


def _whole(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise InvalidValue("a whole number (an int)")
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidValue("a number")
    try:
        return float(value)
    except OverflowError:
        return value  # type: ignore[return-value]  # too large for any range


def _truth(value: Any) -> bool:
    if not isinstance(value, bool):
        raise InvalidValue("True or False")
    return value


def _text(value: Any) -> str:
    text = os.fspath(value) if isinstance(value, os.PathLike) else value
    if not isinstance(text, str):
        raise InvalidValue("a string")
    if "\0" in text or text.encode("utf-8", "replace").decode("utf-8") != text:
        raise InvalidValue("a string without NUL or half a character")
    if len(text) > 4096:
        raise InvalidValue("a string of at most 4096 characters")
    return text


def _path(value: Any) -> Path:
    if not isinstance(value, str | os.PathLike) or not _text(value):
        raise InvalidValue("a path")
    return Path(value)


def _anything(value: Any) -> Any:
    return value


def _nothing(value: Any) -> None:
    if value is not None:
        raise InvalidValue("None")


_TYPES: dict[Any, tuple[Callable[[Any], Any], str]] = {
    int: (_whole, "a whole number"),
    float: (_number, "a number"),
    bool: (_truth, ""),
    str: (_text, ""),
    Path: (_path, ""),
    Any: (_anything, ""),
    type(None): (_nothing, ""),
}


def _of_other_type(option: Any, value: Any) -> Any:
    """Check choices, sequences, dicts, callables and classes; accept any other type."""
    origin = get_origin(option) or option
    if origin is Annotated:
        return fit(read(option), value)
    if origin is Literal:
        return _choice(get_args(option), value)
    if origin is tuple:
        return _sequence(get_args(option)[0], value)
    if origin is dict:
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            raise InvalidValue('a dict of names and values, such as {"name": 1}')
    elif origin is collections.abc.Callable:
        if not callable(value):
            raise InvalidValue("a callable")
    elif origin is Iterable:
        if not isinstance(value, Iterable) or isinstance(value, str):
            raise InvalidValue("a list", f"[{shown(value)}]" if callable(value) else None)
    elif (
        isinstance(origin, type)
        and not getattr(origin, "_is_protocol", False)
        and not isinstance(value, origin)
    ):
        if isinstance(value, type) and issubclass(value, origin):
            raise InvalidValue(f"an instance: write {value.__name__}()")
        raise InvalidValue(f"an instance of {' or '.join(c.__name__ for c in _kinds(origin))}")
    return value


def _kinds(cls: type) -> list[type]:
    """Return the names of classes derived from a class, or of the class itself."""
    below: list[type] = cls.__subclasses__()
    below = [one for one in below if one.__module__.startswith("headrace.")]  # except user classes
    kinds = {kind for one in below for kind in (one, *_kinds(one))}
    return sorted(kinds, key=lambda kind: kind.__name__) or [cls]


def _choice(options: tuple[Any, ...], value: Any) -> Any:
    if not any(type(value) is type(one) and value == one for one in options):
        names = [repr(one) for one in options]
        words = f"{', '.join(names[:-1])} or {names[-1]}" if names[1:] else names[0]
        close = nearest(value.lower(), options, 1) if isinstance(value, str) else ""
        raise InvalidValue(words, close.removeprefix(" Did you mean ").removesuffix("?") or None)
    return value


def _sequence(item: Any, value: Any) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple):
        try:
            near = (fit(read(item), value),)
        except InvalidValue:
            near = None
        raise InvalidValue("a sequence, with a comma after a single value", near)
    kind = read(item)
    try:
        return tuple(fit(kind, one) for one in value)
    except InvalidValue as misfit:
        raise InvalidValue(f"a sequence of which each is {misfit.words}") from None

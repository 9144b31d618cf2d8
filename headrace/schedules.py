"""Schedules of hyperparameters: points, functions of the remaining fraction, and named shapes.

The learner's process resolves schedules once per update, so losses and optimisers see plain
numbers.
"""

from __future__ import annotations

import copy
import itertools
import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from headrace.errors import ConfigError, shown
from headrace.validation.fields import check_value, float_fields
from headrace.validation.type_checks import ScheduleBase

T = TypeVar("T")
_TRIED = 101  # number of values of a function that are checked before training
_WARMUP_FROM = 0.1  # factor at the start of a warm-up
_NAMED_IN = {"learning_rate": "lr_schedule", "entropy_coef": "entropy_schedule"}
_AS_IN = "as in '0:1e-3,0.5:3e-4,1:0' or [[0, 1e-3], [1_000_000, 1e-5]]"


@dataclass(frozen=True)
class Points(ScheduleBase):
    """Linear interpolation between points, constant before the first and after the last.

    Args:
        points: pairs of x and value with increasing x. x counts environment steps, or fractions of
            ``total_steps`` if the last x is at most 1.
    """

    points: tuple[tuple[float, float], ...]

    def at(self, env_steps: int, total_steps: float) -> float:
        x = env_steps / total_steps if self.in_fractions else env_steps
        before, value = self.points[0]
        for after, following in self.points:
            if x <= after:
                share = 1.0 if after == before else (x - before) / (after - before)
                return value + min(max(share, 0.0), 1.0) * (following - value)
            before, value = after, following
        return value

    @property
    def in_fractions(self) -> bool:
        """True if x is a fraction of the run."""
        return self.points[-1][0] <= 1

    def samples(self) -> Iterable[float]:
        return [value for _, value in self.points]

    def __str__(self) -> str:
        return ",".join(f"{_short(x)}:{_short(value)}" for x, value in self.points)


@dataclass(frozen=True)
class Function(ScheduleBase):
    """Schedule by a function of the remaining fraction of the run: 1 at the start, 0 at the end."""

    function: Callable[[float], float]
    name: str = "schedule"  # name of the hyperparameter, for messages

    def at(self, env_steps: int, total_steps: float) -> float:
        return self._value(max(0.0, 1.0 - env_steps / total_steps))

    def samples(self) -> Iterable[float]:
        return [self._value(1.0 - i / (_TRIED - 1)) for i in range(_TRIED)]

    def _value(self, remaining: float) -> float:
        try:
            value = self.function(remaining)
        except Exception as error:
            raise ConfigError(
                f"{self.name}={self} is not a valid schedule: called with {remaining:g}, it raised "
                f"{type(error).__name__}: {error}. It must return a number for each remaining "
                "fraction of the run, from 1 (start) to 0 (end)"
            ) from error
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise ConfigError(
                f"{self.name}={self} is not a valid schedule: it returned {shown(value)}, not a "
                "number"
            )
        return float(value)

    def __str__(self) -> str:
        return getattr(self.function, "__qualname__", None) or shown(self.function)


def read(name: str, value: Any) -> Any:
    """Convert points or a function to a schedule; returns anything else unchanged.

    Args:
        name: name of the hyperparameter, for messages.
        value: points as text or as pairs, or a function of the remaining fraction.

    Raises:
        ConfigError: the points are invalid, or the text names a schedule.
    """
    if isinstance(value, ScheduleBase | type):
        return value
    if isinstance(value, str) and ":" in value:
        return _points(name, value, [part.split(":") for part in value.split(",")])
    if isinstance(value, str) and value.partition("_")[0] in ("linear", "cosine", "warmup"):
        setting = _NAMED_IN.get(name)
        way = f"for a named schedule set {setting}={value!r}, or give" if setting else "give"
        raise ConfigError(f"{name}={value!r} must be a number or points: {way} points, {_AS_IN}")
    if isinstance(value, list | tuple) and value:
        return _points(name, value, value)
    return Function(value, name) if callable(value) else value


def _points(name: str, value_set: Any, pairs: Any) -> Points:
    try:
        points = tuple((float(x), float(value)) for x, value in pairs)
    except (TypeError, ValueError):
        raise ConfigError(
            f"{name}={shown(value_set)} must be points of x and value, {_AS_IN}"
        ) from None
    xs = [x for x, _ in points]
    if not all(math.isfinite(x) and x >= 0 for x in xs):
        raise ConfigError(f"{name}={shown(value_set)} must have finite x of 0 or more, {_AS_IN}")
    if any(x >= after for x, after in itertools.pairwise(xs)):
        raise ConfigError(
            f"{name}={shown(value_set)} must have increasing x, {_AS_IN} (nearest: "
            f"{Points(tuple(sorted(dict(points).items())))})"
        )
    return Points(points)


def _short(number: float) -> str:
    return str(int(number)) if abs(number) < 1e15 and number == int(number) else repr(number)


def adopt(settings: Any) -> None:
    """Convert points and functions in the float fields of a frozen dataclass to schedules."""
    for name in float_fields(type(settings)):
        value_set = getattr(settings, name)
        if type(value_set) is not float and (value := read(name, value_set)) is not value_set:
            object.__setattr__(settings, name, value)


def of(settings: Any) -> dict[str, ScheduleBase]:
    """Return the fields that are schedules, by name."""
    return {
        name: value for name, value in vars(settings).items() if isinstance(value, ScheduleBase)
    }


def possible(kind: Any) -> list[str]:
    """Return the names of an algorithm's settings that may be schedules."""
    return [name for name in float_fields(kind) if name not in kind.FIXED]


def highest(value: Any) -> Any:
    """Return the highest value of a schedule, or the number itself."""
    return max(value.samples()) if isinstance(value, ScheduleBase) else value


def lowest(value: Any) -> Any:
    """Return the lowest value of a schedule, or the number itself."""
    return min(value.samples()) if isinstance(value, ScheduleBase) else value


def at_start(settings: T) -> T:
    """Replace the schedules in settings by their first values."""
    first = {name: schedule.at(0, 1) for name, schedule in of(settings).items()}
    return with_values(settings, first) if first else settings


def with_values(settings: T, values: Mapping[str, float]) -> T:
    """Copy a frozen dataclass with new values of some fields, without checking them."""
    changed = copy.copy(settings)
    for name, value in values.items():
        object.__setattr__(changed, name, value)
    return changed


def share_done(
    env_steps: float, total_steps: float, seconds: float, stop_time_s: float | None
) -> float:
    """Return the share of a run that is done, by its steps or its time, whichever is greater."""
    return max(env_steps / total_steps, seconds / stop_time_s if stop_time_s else 0.0)


def steps_at_end(
    env_steps: int, total_steps: int, seconds: float, stop_time_s: float | None
) -> float:
    """Return the environment steps at which a run ends: total_steps, or fewer in limited time.

    Assumes that the run keeps its mean speed.

    Args:
        env_steps, seconds: steps and time of training so far.
    """
    share = share_done(env_steps, total_steps, seconds, stop_time_s)
    by_steps = env_steps == 0 or share <= env_steps / total_steps
    return total_steps if by_steps else env_steps / share


def shape(kind: str, env_steps: int, total_steps: float, warmup: float = 0.0) -> float:
    """Return the factor by which a named schedule multiplies a value.

    Args:
        kind: ``constant``; ``linear`` or ``cosine``, which fall to 0 at ``total_steps``;
            ``warmup``, which rises to 1 and stays; ``warmup_linear`` or ``warmup_cosine``, which
            then fall.
        warmup: fraction of the run over which the factor rises.
    """
    remaining = max(0.0, 1.0 - env_steps / total_steps)
    if kind == "linear":
        return remaining
    rises, _, falls = kind.partition("_") if kind.startswith("warmup") else ("", "", kind)
    done = 1.0 - remaining
    if rises and done < warmup:
        return _WARMUP_FROM + (1.0 - _WARMUP_FROM) * done / warmup
    done = (done - warmup) / (1.0 - warmup) if rises else done
    if falls == "cosine":
        return 0.5 * (1.0 + math.cos(math.pi * done))
    return 1.0 - done if falls == "linear" else 1.0


def check_now(settings: Any, name: str, value: float) -> None:
    """Raise ConfigError unless a function's value is in the range of its hyperparameter."""
    check_value(type(settings), name, value, varies=True)

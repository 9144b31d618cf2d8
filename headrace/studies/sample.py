"""Distributions that settings are sampled from: ``learning-rate=loguniform:5e-6,5e-3``."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np

from headrace.config import Config
from headrace.errors import ConfigError, nearest, require, shown
from headrace.rundir.config_file import replaced

Kind = Literal["uniform", "loguniform", "int", "logint", "choice"]
KINDS = get_args(Kind)
# Settings that identify a run, or that the study sets.
_RESERVED = (
    "seed",
    "run_dir",
    "resume",
    "overwrite",
    "init_from",
    "total_steps",
    "algo",
    "network",
)

_CONSTANTS = {"None": None, "True": True, "False": False}  # as in Python and on the command line
_MOST_TRIED = 256  # combinations of the other parameters that are tried with a value

# IMPALA, Table D.1: initial distributions of hyperparameters, also for PBT. The paper's epsilons,
# 1e-1 to 1e-7, are added to mean squares of gradients that are sums over 32 x 100 steps. Ours are
# added to the root of those of means: the root of the printed value, divided by 3,200.
IMPALA = (
    "entropy_coef=loguniform:5e-5,1e-2",
    "learning_rate=loguniform:5e-6,5e-3",
    "optimizer_eps=choice:1e-4,1e-5,1e-6,1e-7",
)


@dataclass(frozen=True)
class Parameter:
    """A setting and the distribution of its values.

    Attributes:
        values: both ends of a range, which are included; or the choices.
    """

    name: str
    kind: Kind
    values: tuple[Any, ...]

    @property
    def log(self) -> bool:
        """Return whether values are sampled on a logarithmic scale."""
        return self.kind in ("loguniform", "logint")

    @property
    def is_integer(self) -> bool:
        """Return whether values are integers of a range."""
        return self.kind in ("int", "logint")

    def draw(self, rng: np.random.Generator) -> Any:
        """Sample a value."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.is_integer:
            high += 1  # so that the last integer has an interval as well
        if self.log:
            value = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            value = float(rng.uniform(low, high))
        return min(int(value), self.values[1]) if self.is_integer else min(max(value, low), high)


def seed_of(*numbers: int) -> int:
    """Return a seed from 0 to 2**31 - 1 that depends on all of these non-negative numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def parse(texts: Sequence[str], config: Config) -> list[Parameter]:
    """Parse parameters; for repeated settings, the last one counts.

    Args:
        config: config with these settings.

    Raises:
        ConfigError: a setting is unknown or a range malformed; or an end of a range or a choice is
            invalid with all ends and choices of the others.
    """
    parameters = {one.name: one for one in map(_parsed, texts)}
    for name, one in parameters.items():
        for value in one.values:
            _check_value(name, value, [p for p in parameters.values() if p is not one], config)
    return list(parameters.values())


def _check_value(name: str, value: Any, others: Sequence[Parameter], config: Config) -> None:
    """Raise ConfigError if this value is invalid with every tried combination of the others."""
    try:
        replaced(config, {name: value})
    except ConfigError:
        ends = itertools.product(*(other.values for other in others))
        for values in itertools.islice(ends, _MOST_TRIED):
            settings = {other.name: x for other, x in zip(others, values, strict=True)}
            with contextlib.suppress(ConfigError):
                replaced(config, {**settings, name: value})
                return
        raise


def _parsed(text: str) -> Parameter:
    name, equals, rest = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    kind, colon, ends = rest.partition(":")
    as_in = "as in learning-rate=loguniform:1e-5,1e-2 or epochs=choice:1,2,4"
    if not (equals and colon and name):
        raise ConfigError(f"sample={shown(text)} must be NAME=KIND:VALUES, {as_in}")
    if kind not in KINDS:
        hint = nearest(kind.lower(), KINDS)
        raise ConfigError(f"sample={shown(text)}: choose {', '.join(KINDS)} as its kind.{hint}")
    valid = f"a different setting: the study sets {name}"
    require(name not in _RESERVED, "sample", text, valid)
    values = _values(kind, ends)
    if kind != "choice":
        _check_range(text, kind, values)
    elif len(set(map(str, values))) < max(2, len(values)):
        raise ConfigError(
            f"sample={shown(text)} must contain two or more different choices, {as_in}"
        )
    if kind in ("uniform", "loguniform"):
        values = tuple(map(float, values))
    return Parameter(name, kind, values)  # type: ignore[arg-type]


def _values(kind: str, ends: str) -> tuple[Any, ...]:
    if kind == "choice":  # commas may stand inside lists
        with contextlib.suppress(ValueError, RecursionError):
            return tuple(json.loads(f"[{ends}]"))
    return tuple(_value(part) for part in ends.split(","))


def _value(text: str) -> Any:
    text = text.strip()
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _check_range(text: str, kind: str, values: tuple[Any, ...]) -> None:
    is_integer = kind in ("int", "logint")
    numbers = [x for x in values if isinstance(x, int if is_integer else int | float)]
    numbers = [x for x in numbers if not isinstance(x, bool) and abs(x) <= 1e18]
    if len(numbers) != 2 or len(values) != 2:
        what = "whole numbers" if is_integer else "numbers"
        raise ConfigError(f"sample={shown(text)} must end with two {what}, as {kind}:1,8")
    low, high = numbers
    if not low < high:
        near = f"{kind}:{high},{low}" if high < low else "a choice, or a wider range"
        raise ConfigError(f"sample={shown(text)} must go from low to high (nearest: {near})")
    if kind.startswith("log") and low <= 0:
        near = f"{kind.removeprefix('log')}:{low},{high}"
        raise ConfigError(f"sample={shown(text)} must begin above 0 (nearest: {near})")

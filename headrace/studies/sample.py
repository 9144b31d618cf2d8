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
# What tells runs apart, or is the study's own to decide.
_OWN = ("seed", "run_dir", "resume", "overwrite", "init_from", "total_steps", "algo", "network")

_MOST_TRIED = 256  # combinations of the others, in which a value may be valid

# IMPALA, Table D.1: what hyperparameters are drawn from, and PBT's members begin with. Its
# epsilons, 1e-1 to 1e-7, are added to mean squares of gradients that are sums over 32 x 100 steps,
# ours to the root of those of means: so the root of the printed one, divided by 3,200.
IMPALA = (
    "entropy_coef=loguniform:5e-5,1e-2",
    "learning_rate=loguniform:5e-6,5e-3",
    "optimizer_eps=choice:1e-4,1e-5,1e-6,1e-7",
)


@dataclass(frozen=True)
class Parameter:
    """A setting and the distribution of its values.

    Attributes:
        values: the two ends of a range, both included; or the choices.
    """

    name: str
    kind: Kind
    values: tuple[Any, ...]

    @property
    def log(self) -> bool:
        """Return whether values are sampled on a logarithmic scale."""
        return self.kind in ("loguniform", "logint")

    @property
    def whole(self) -> bool:
        """Return whether values are integers of a range."""
        return self.kind in ("int", "logint")

    def draw(self, rng: np.random.Generator) -> Any:
        """Sample a value."""
        if self.kind == "choice":
            return self.values[int(rng.integers(len(self.values)))]
        low, high = self.values
        if self.whole:
            high += 1  # each whole number has a stretch of its own
        if self.log:
            found = math.exp(rng.uniform(math.log(low), math.log(high)))
        else:
            found = float(rng.uniform(low, high))
        return min(int(found), self.values[1]) if self.whole else min(max(found, low), high)


def seed_of(*numbers: int) -> int:
    """Return a seed from 0 to 2**31 - 1 that depends on all of these non-negative numbers."""
    return int(np.random.SeedSequence(numbers).generate_state(1)[0] >> 1)


def parse(texts: Sequence[str], config: Config) -> list[Parameter]:
    """Parse parameters; for repeated settings, the last one counts.

    Args:
        config: whose settings they are.

    Raises:
        ConfigError: a setting is unknown, or may not have an end of its range or a choice, whatever
            ends and choices the others have; a range is none.
    """
    found = {one.name: one for one in map(_parsed, texts)}
    for name, one in found.items():
        for value in one.values:
            _check_value(name, value, [p for p in found.values() if p is not one], config)
    return list(found.values())


def _check_value(name: str, value: Any, others: Sequence[Parameter], config: Config) -> None:
    """Raise ConfigError if a run may not have this value."""
    try:
        replaced(config, {name: value})
    except ConfigError:
        ends = itertools.product(*(other.values for other in others))
        for beside in itertools.islice(ends, _MOST_TRIED):
            settings = {other.name: x for other, x in zip(others, beside, strict=True)}
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
    require(name not in _OWN, "sample", text, f"of another setting: {name} is the study's to set")
    values = _values(kind, ends)
    if kind != "choice":
        _check_range(text, kind, values)
    elif len(set(map(str, values))) < max(2, len(values)):
        raise ConfigError(f"sample={shown(text)} must hold two or more different choices, {as_in}")
    if kind in ("uniform", "loguniform"):
        values = tuple(map(float, values))
    return Parameter(name, kind, values)  # type: ignore[arg-type]


def _values(kind: str, ends: str) -> tuple[Any, ...]:
    if kind == "choice":  # commas may stand inside lists
        with contextlib.suppress(ValueError, RecursionError):
            return tuple(json.loads(f"[{ends}]"))
    return tuple(_value(part) for part in ends.split(","))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text.strip()


def _check_range(text: str, kind: str, values: tuple[Any, ...]) -> None:
    whole = kind in ("int", "logint")
    numbers = [x for x in values if isinstance(x, int if whole else int | float)]
    numbers = [x for x in numbers if not isinstance(x, bool) and abs(x) <= 1e18]
    if len(numbers) != 2 or len(values) != 2:
        what = "whole numbers" if whole else "numbers"
        raise ConfigError(f"sample={shown(text)} must end with two {what}, as {kind}:1,8")
    low, high = numbers
    if not low < high:
        near = f"{kind}:{high},{low}" if high < low else "a choice, or a wider range"
        raise ConfigError(f"sample={shown(text)} must go from low to high (nearest: {near})")
    if kind.startswith("log") and low <= 0:
        near = f"{kind.removeprefix('log')}:{low},{high}"
        raise ConfigError(f"sample={shown(text)} must begin above 0 (nearest: {near})")

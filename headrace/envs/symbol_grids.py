"""Detects images whose values are symbols, such as kinds of objects, instead of brightness."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from headrace.spaces import observations as spaces
from headrace.spaces import walk
from headrace.spaces.images import is_image

_MOST_SYMBOLS, _FEWEST_SYMBOLS = 32, 16
_SMALLEST_SIDE = 4  # of a table; smaller ones are usually lists of numbers
_LARGEST_SIDE = 64  # pixels; a dark image may only show small values at first
_RESETS, _STEPS = 4, 16  # observed steps after each reset
_MARGIN = 1.25  # symbols per observed value, at least

LargestValues: TypeAlias = dict[str, int]
"""Largest observed value of each possible grid by its name; see :func:`possible_grids`."""


def possible_grids(space: gymnasium.Space) -> dict[str, Box]:
    """Return the parts of an observation that may be grids of symbols, by name.

    Candidates are integer images, and integer tables with both sides of at least 4. Their sides are
    at most 64. They have at least three possible values, which start at 0 or are few.
    """
    return {name_of(path): leaf for path, leaf in walk.leaves(space) if _may_be_grid(leaf)}


def name_of(path: spaces.Path) -> str:
    """Return the name of a part of an observation in settings."""
    return spaces.dotted(path) or "obs"


def _may_be_grid(space: Any) -> bool:
    if not isinstance(space, Box) or space.dtype.kind not in "iu":
        return False
    is_table = len(space.shape) == 2 and min(space.shape) >= _SMALLEST_SIDE
    known = space.low.min() == 0 or _declared(space) <= _MOST_SYMBOLS
    is_grid = (is_image(space) or is_table) and max(space.shape) <= _LARGEST_SIDE
    return is_grid and known and _declared(space) > 2


def _declared(space: Box) -> int:
    """Return the number of values within the bounds."""
    return int(space.high.max()) - int(space.low.min()) + 1


def largest_values(
    space: gymnasium.Space, reset: Callable[[], Any], step: Callable[[], Any]
) -> LargestValues:
    """Return the largest value of each possible grid in a few episodes of random actions.

    It stops once every grid has shown too many values for symbols.

    Args:
        reset, step: return observations ``[B, ...]`` of the space.
    """
    seen = dict.fromkeys(possible_grids(space), 0)
    paths = {name_of(path): path for path, _ in walk.leaves(space)}

    def decided(obs: Any) -> bool:
        for name in seen:
            seen[name] = max(seen[name], int(np.max(spaces.at(obs, paths[name]))))
        return all(value >= _MOST_SYMBOLS for value in seen.values())

    for _ in range(_RESETS):
        if decided(reset()) or any(decided(step()) for _ in range(_STEPS)):
            break
    return seen


def common_to_tasks(each: Iterable[LargestValues]) -> LargestValues:
    """Return the largest values of several tasks, whose spaces may have different parts."""
    each = list(each)
    names = dict.fromkeys(name for one in each for name in one)
    return {name: max(one.get(name, 0) for one in each) for name in names}


def num_symbols_of(space: gymnasium.Space, seen: LargestValues) -> dict[str, int]:
    """Return the number of symbols of each grid of symbols, by name.

    A grid whose bounds allow few values has that many symbols. Otherwise it is the number of
    observed values plus a quarter, rounded up to a power of two, and at least 16: random actions
    don't reach all symbols of a task.

    Args:
        seen: the result of :func:`largest_values`.
    """
    grids = {}
    for name, leaf in possible_grids(space).items():
        if _declared(leaf) <= _MOST_SYMBOLS:
            grids[name] = _declared(leaf)
        elif 0 < seen.get(name, 0) < _MOST_SYMBOLS:
            enough = 2 ** math.ceil(math.log2(_MARGIN * (seen[name] + 1)))
            grids[name] = min(max(enough, _FEWEST_SYMBOLS), _declared(leaf))
    return grids

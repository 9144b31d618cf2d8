"""Compares the spaces of two implementations of an environment."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from headrace.errors import EnvironmentFault
from headrace.spaces.walk import leaves, place

_CLOSE = 1e-3  # bounds are written with few digits or computed in float32


def difference(
    observations: gymnasium.Space,
    actions: gymnasium.Space,
    other_observations: gymnasium.Space,
    other_actions: gymnasium.Space,
    whose: str = "the single environment's",
) -> str:
    """Return the first difference of another implementation's spaces, as a clause; "" if none.

    Structure, shapes, dtypes, numbers of choices and the bounds of actions must be equal. Bounds of
    float observations may differ: many implementations declare none, or looser ones, for the same
    observations, and nothing is computed from them.

    Args:
        whose: owner of the first two spaces, for the clause.
    """
    for kind, ours, theirs in (
        ("observation", observations, other_observations),
        ("action", actions, other_actions),
    ):
        each, others = dict(leaves(ours)), dict(leaves(theirs))
        if each.keys() != others.keys() or type(ours) is not type(theirs):
            return f"its {kind} space is {_brief(theirs)} where {whose} is {_brief(ours)}"
        for path, leaf in each.items():
            if not _same(leaf, others[path], bounds=kind == "action"):
                return (
                    f"its {kind} space{place(path)} is {_brief(others[path])} where {whose} is "
                    f"{_brief(leaf)}"
                )
    return ""


def same_space(one: Any, another: Any) -> bool:
    """Return whether two spaces are equal; custom ones without ``__eq__`` are compared by class."""
    if one is another or one == another:
        return True
    each, others = dict(leaves(one)), dict(leaves(another))
    if type(one) is not type(another) or each.keys() != others.keys():
        return False
    return all(_equal(leaf, others[path]) for path, leaf in each.items())


def _equal(ours: gymnasium.Space, theirs: gymnasium.Space) -> bool:
    if type(ours) is type(theirs) and type(ours).__eq__ is object.__eq__:
        return (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    return type(ours) is type(theirs) and bool(ours == theirs)


def check_alike(name: str, first: Any, other: Any, index: int) -> None:
    """Raise EnvironmentFault unless two environments of one run have equal spaces.

    Args:
        name: name of the environment.
        first: environment 0.
        other: the environment with this index.
    """
    for kind in ("observation_space", "action_space"):
        one, another = getattr(first, kind), getattr(other, kind)
        if not same_space(one, another):
            raise EnvironmentFault(
                f"{name}: the {kind} of environment {index}, {_brief(another)}, differs from that "
                f"of environment 0, {_brief(one)}: all environments of a run need the same spaces"
            )


def _same(ours: gymnasium.Space, theirs: gymnasium.Space, bounds: bool) -> bool:
    if not (isinstance(ours, Box) and isinstance(theirs, Box)):
        return _equal(ours, theirs)
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    if ours.dtype.kind == "f" and not bounds:
        return True
    pairs = (ours.low, theirs.low), (ours.high, theirs.high)
    return all(np.allclose(a, b, rtol=_CLOSE, atol=_CLOSE) for a, b in pairs)


def _brief(space: gymnasium.Space) -> str:
    text = " ".join(str(space).split())
    return text if len(text) < 100 else text[:97] + "..."

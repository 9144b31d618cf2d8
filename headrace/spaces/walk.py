"""Walks over nested spaces of Dicts and Tuples, and over values with the same structure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import gymnasium
from gymnasium.spaces import Dict, Tuple

Space: TypeAlias = gymnasium.Space[Any]
Path: TypeAlias = tuple[Any, ...]  # keys of Dicts and indices of Tuples, from the outermost


def parts(space: Space) -> dict[Any, Space] | None:
    """Return the subspaces of a Dict by key, of a Tuple by index; None for a leaf."""
    if isinstance(space, Dict):
        return dict(space.spaces)
    return dict(enumerate(space.spaces)) if isinstance(space, Tuple) else None


def leaves(space: Space, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Return the paths and spaces of all leaves, in order."""
    inner = parts(space)
    if inner is None:
        yield path, space
        return
    for key, part in inner.items():
        yield from leaves(part, (*path, key))


def map_space(function: Callable[..., Any], space: Space, *values: Any) -> Any:
    """Map ``function(leaf, *parts)`` over every leaf and the corresponding parts of ``values``.

    Args:
        values: trees with the structure of ``space``, down to its leaves.

    Returns:
        a tree of that structure: dicts for Dicts, tuples for Tuples.
    """
    if isinstance(space, Dict):
        inner = space.spaces.items()
        return {key: map_space(function, part, *(v[key] for v in values)) for key, part in inner}
    if isinstance(space, Tuple):
        each = zip(space.spaces, *values, strict=True)
        return tuple(map_space(function, part, *v) for part, *v in each)
    return function(space, *values)


def place(path: Path) -> str:
    """Format a path as `` at 'a'/0`` for messages; empty at the top."""
    return " at " + "/".join(map(repr, path)) if path else ""

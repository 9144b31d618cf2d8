"""Nested dicts and tuples of tensors, walked in insertion order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def map_leaves(function: Callable[..., Any], *trees: Any) -> Any:
    """Apply ``function`` to the leaves of trees of one structure; the result has that structure.

    Raises:
        ValueError: the trees differ in keys or lengths.
    """
    head = trees[0]
    if isinstance(head, dict):
        if any(set(t) != set(head) for t in trees[1:]):
            raise ValueError(f"trees differ: keys {[sorted(t) for t in trees]}")
        return {key: map_leaves(function, *(t[key] for t in trees)) for key in head}
    if isinstance(head, tuple):
        if any(len(t) != len(head) for t in trees[1:]):
            raise ValueError(f"trees differ: tuples of length {[len(t) for t in trees]}")
        return tuple(map_leaves(function, *parts) for parts in zip(*trees, strict=True))
    return function(*trees)


def leaves(tree: Any) -> list[Any]:
    """All leaves, depth first."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found

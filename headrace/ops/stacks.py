"""Stacks of the latest pictures, held as single pictures, each of them once.

A leaf ``[T, B, S, ...]``, whose part s is the picture of S - 1 - s rows before, is held as a dict
of two: ``pictures [T + S - 1, B, ...]``, in which row t's own picture, its newest, is the one at
``t + S - 1``, and ``own [T, B]`` int8, which says how many of a row's stack it is made of. Where
those are S, the stack is the S pictures up to its own. Below, the pictures before are black
(``own > 0``), or like the oldest of its own (``own < 0``): an episode has begun. So columns are cut
and joined as those of any other leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PICTURES, OWN = "pictures of stacks", "how many are their own"


def map_stacks(function: Callable[[Any, Any], Any], other: Callable[[Any], Any], of: Any) -> Any:
    """``function(pictures, own)`` in place of each held stack, ``other(leaf)`` of other leaves."""
    if isinstance(of, dict):
        if of.keys() == {PICTURES, OWN}:
            return function(of[PICTURES], of[OWN])
        return {key: map_stacks(function, other, part) for key, part in of.items()}
    if isinstance(of, tuple):
        return tuple(map_stacks(function, other, part) for part in of)
    return other(of)


def flat(inputs: Any) -> Any:
    """Rows and columns as one: leaves ``[T, B, ...]`` to ``[T * B, ...]``, held stacks whole."""

    def whole(pictures: Any, own: Tensor) -> Tensor:
        parts = pictures if isinstance(pictures, tuple) else _parts(pictures, own)
        x = torch.stack(parts, 2).flatten(0, 1)  # columns of a batch have no flat view
        return _begun(x, own.flatten())

    return map_stacks(whole, lambda x: x.flatten(0, 1), inputs)


def apart(inputs: Any) -> Any:
    """The same, with a tuple of views ``[T, B, ...]`` for the pictures: S tensors, oldest first.

    Then each is a leaf with a row for each row of the other leaves.
    """
    return map_stacks(lambda x, own: {PICTURES: _parts(x, own), OWN: own}, lambda x: x, inputs)


def _parts(pictures: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    rows = len(own)
    return tuple(pictures[s : s + rows] for s in range(len(pictures) - rows + 1))


def _begun(x: Tensor, own: Tensor) -> Tensor:
    """Put what was before an episode into stacks ``[N, S, ...]``, in place."""
    if x.device.type != "cpu":  # where asking which they are would wait
        return _filled(x, own)
    rows = (own != x.shape[1]).nonzero().flatten()
    return x.index_copy_(0, rows, _filled(x[rows], own[rows])) if len(rows) else x


def _filled(x: Tensor, own: Tensor) -> Tensor:
    size, more = x.shape[1], (1,) * (x.dim() - 2)
    count = own.abs().long()
    oldest = x[torch.arange(len(x), device=x.device), size - count]
    before = torch.where(own.view(-1, *more) < 0, oldest, 0).unsqueeze(1)
    foreign = torch.arange(size, device=x.device) < (size - count).unsqueeze(1)
    return torch.where(foreign.view(-1, size, *more), before, x)

"""Stores frame stacks as single frames, each of them once.

A leaf ``[T, B, S, ...]`` with frame s from S - 1 - s rows before is stored as a dict of two leaves.
``pictures [T + S - 1, B, ...]`` holds the newest frame of row t at ``t + S - 1``. ``own [T, B]``
int8 is the number of frames since the episode began, at most S: then the stack is the S frames up
to the newest one. With fewer, earlier frames are black (``own > 0``) or copies of the first frame
of the episode (``own < 0``). Columns can be selected and concatenated as in any other leaf.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

PICTURES, OWN = "pictures of stacks", "how many are their own"


def map_stacks(function: Callable[[Any, Any], Any], other: Callable[[Any], Any], of: Any) -> Any:
    """Replace each stored stack by ``function(pictures, own)``, other leaves by ``other(leaf)``."""
    if isinstance(of, dict):
        if of.keys() == {PICTURES, OWN}:
            return function(of[PICTURES], of[OWN])
        return {key: map_stacks(function, other, part) for key, part in of.items()}
    if isinstance(of, tuple):
        return tuple(map_stacks(function, other, part) for part in of)
    return other(of)


def flat(inputs: Any) -> Any:
    """Flatten leaves ``[T, B, ...]`` to ``[T * B, ...]``, with stored stacks rebuilt."""

    def whole(pictures: Any, own: Tensor) -> Tensor:
        parts = pictures if isinstance(pictures, tuple) else _parts(pictures, own)
        x = torch.stack(parts, 2).flatten(0, 1)  # columns of a batch have no flat view
        return _begun(x, own.flatten())

    return map_stacks(whole, lambda x: x.flatten(0, 1), inputs)


def apart(inputs: Any) -> Any:
    """Replace the frames of stored stacks by a tuple of S views ``[T, B, ...]``, oldest first.

    Each view then has the same rows as the other leaves.
    """
    return map_stacks(lambda x, own: {PICTURES: _parts(x, own), OWN: own}, lambda x: x, inputs)


def _parts(pictures: Tensor, own: Tensor) -> tuple[Tensor, ...]:
    rows = len(own)
    return tuple(pictures[s : s + rows] for s in range(len(pictures) - rows + 1))


def _begun(x: Tensor, own: Tensor) -> Tensor:
    """Fill in the frames before an episode's start in stacks ``[N, S, ...]``, in place."""
    if x.device.type != "cpu":  # selecting rows would wait for the device
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

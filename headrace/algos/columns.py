"""Columns of batches: side by side, picked out, ordered by age."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.types import Batch


def concatenate(batches: list[Batch]) -> Batch:
    """The columns of several batches side by side, in their order.

    Args:
        batches: ``[T, B_i]`` each, with equal T, trees of one structure and the same targets.

    Returns:
        a batch of ``[T, sum(B_i)]`` in memory of its own.

    Raises:
        ValueError: the trees differ.
    """

    def join(name: str) -> Any:
        parts = [getattr(batch, name) for batch in batches]
        return tree.map_leaves(lambda *leaves: torch.cat(leaves, dim_of(name)), *parts)

    return Batch(**{field.name: join(field.name) for field in fields(Batch)})


def pick(batches: list[Batch], index: Tensor) -> Batch:
    """Columns of batches that are counted through as if they stood side by side.

    Args:
        batches: as in :func:`concatenate`.
        index: ``[N]`` int64 on the CPU, N >= 1, each within the columns.

    Returns:
        a batch of ``[T, N]`` in the order of ``index``, in memory of its own.
    """
    parts, places, start = [], [], 0
    for batch in batches:
        stop = start + batch.valid.shape[1]
        here = ((index >= start) & (index < stop)).nonzero().flatten()
        if len(here):
            parts.append(batch.columns(index[here] - start))
            places.append(here)
        start = stop
    return concatenate(parts).columns(torch.cat(places).argsort())


def oldest_first(sizes: list[int], starts: list[int]) -> Tensor:
    """The columns of several rings, counted through, from the oldest to the newest, int64.

    Args:
        sizes: columns of each ring, 1 or more; starts: where its oldest one is, modulo its size.
    """
    index, age, before = [], [], 0
    for size, start in zip(sizes, starts, strict=True):
        index.append(before + (torch.arange(size) + start) % size)
        age.append(torch.arange(size - 1, -1, -1))
        before += size
    if not index:
        return torch.zeros(0, dtype=torch.int64)
    order = torch.cat(age).argsort(descending=True, stable=True)  # equally old: by rank
    return torch.cat(index)[order]


def as_dict(batch: Batch) -> dict[str, Any]:
    """Its fields, which :func:`from_dict` makes the batch of again."""
    return {field.name: getattr(batch, field.name) for field in fields(Batch)}


def from_dict(saved: dict[str, Any]) -> Batch:
    """The batch of its fields; what a batch of an older version had beside them is left out."""
    return Batch(**{field.name: saved[field.name] for field in fields(Batch)})


def dim_of(name: str) -> int:
    """Where a field of Batch has its columns."""
    return 0 if name == "core" else 1

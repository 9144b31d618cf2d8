"""Gathers rollouts into batches, and selects the observations that environments returned."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from headrace.ops import stacks, tree
from headrace.types import Batch, Rollout, Tree, map_columns


def gather(rollouts: list[Rollout], device: torch.device | str = "cpu") -> Batch:
    """Copy rollouts of equal length into one batch in the learner's memory.

    Args:
        rollouts: each ``[T, B_i]``; they may be views of slots that are about to be reused.

    Returns:
        a batch of ``[T, sum(B_i)]`` on ``device``. On a GPU the copy may still be running; later
        work on the same stream waits for it.
    """
    to = torch.device(device)
    names = [field.name for field in fields(Batch) if field.name not in ("valid", "targets")]
    batches = [
        Batch(**{name: getattr(one, name) for name in names}, valid=~one.first[1:], targets={})
        for one in rollouts
    ]
    return map_columns(lambda dim, *leaves: _joined(leaves, dim, to), *batches)


def _joined(leaves: tuple[Tensor, ...], dim: int, to: torch.device) -> Tensor:
    if to.type != "cuda" or not torch.cuda.is_available():
        return torch.cat(leaves, dim).to(to)
    shape = list(leaves[0].shape)
    shape[dim] = sum(leaf.shape[dim] for leaf in leaves)
    # A GPU reads pinned memory itself, while this thread continues.
    pinned = torch.empty(shape, dtype=leaves[0].dtype, pin_memory=True)
    return torch.cat(leaves, dim, out=pinned).to(to, non_blocking=True)


def real_rows(batch: Batch) -> Tree:
    """Return the observations without the bootstrap row and the padding of short rollouts."""
    padded = batch.first[:-1] & batch.first[1:]
    rows = tree.map_leaves(lambda x: x[:-1], stacks.apart(batch.obs))
    return tree.map_leaves(lambda x: x[~padded].unsqueeze(0), rows) if padded.any() else rows

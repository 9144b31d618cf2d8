"""A batch in parts: shuffled minibatches, and advantages in deviations of each part's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from headrace.ops import tree
from headrace.types import Batch, Group, map_columns


def new_generator() -> torch.Generator:
    """A generator that shuffles, seeded from torch's own seed."""
    return torch.Generator().manual_seed(torch.initial_seed() % 2**31)


def shuffled(
    batch: Batch,
    epochs: int,
    minibatches: int,
    generator: torch.Generator,
    normalize_over: Group | None = None,
) -> Iterator[Batch]:
    """``epochs`` passes over a batch that has its targets, in ``minibatches`` random parts each.

    Args:
        normalize_over: give the advantages of each part, over these learners' valid steps, mean 0
            and standard deviation 1; None: leave them.

    Yields:
        batches of ``[1, about T * B / minibatches]``, every sample once per pass. With a recurrent
        policy they are of ``[T, about B / minibatches]``, every column once per pass, and keep the
        bootstrap row; a batch of fewer columns than ``minibatches`` gives a part per column.
    """
    for part in _parts(replace(batch, version=()), epochs, minibatches, generator, normalize_over):
        part.version = batch.version
        yield part


def _parts(
    batch: Batch,
    epochs: int,
    minibatches: int,
    generator: torch.Generator,
    normalize_over: Group | None,
) -> Iterator[Batch]:
    samples = batch if tree.leaves(batch.core) else flatten(batch)
    num_columns, device = samples.valid.shape[1], samples.valid.device
    parts: list[Tensor] = []
    for _ in range(epochs):
        order = torch.randperm(num_columns, generator=generator).to(device)
        parts += order.tensor_split(min(minibatches, num_columns))
    if normalize_over is None:
        yield from map(samples.columns, parts)
        return
    sums = torch.stack([_advantage_sums(samples, index) for index in parts])
    sums = normalize_over.sum(sums.flatten()).view(-1, 3)  # once for all parts
    for index, (count, total, square) in zip(parts, sums.tolist(), strict=True):
        yield _normalized(samples.columns(index), count, total, square)


def normalized(batch: Batch, group: Group) -> Batch:
    """Advantages of a whole batch, over all learners' valid steps, as a minibatch's are."""
    columns = torch.arange(batch.valid.shape[1], device=batch.valid.device)
    sums = group.sum(_advantage_sums(batch, columns))
    return _normalized(batch, *sums.tolist())


def _advantage_sums(samples: Batch, index: Tensor) -> Tensor:
    """Count, sum and sum of squares of the advantages of some columns: ``[3]`` float64."""
    valid = samples.valid.index_select(1, index)
    advantage = samples.targets["advantage"].index_select(1, index)
    real = advantage.double().where(valid, 0.0)
    return torch.stack([valid.sum().double(), real.sum(), real.square().sum()])


def _normalized(batch: Batch, count: float, total: float, square: float) -> Batch:
    """Advantages less their mean, divided by their (unbiased) standard deviation; a lone one: 0."""
    mean = total / max(count, 1)
    deviation = math.sqrt(max(0.0, square - count * mean**2) / max(count - 1, 1))
    scaled = (batch.targets["advantage"] - mean) / (deviation + 1e-8)
    return replace(batch, targets=batch.targets | {"advantage": scaled})


def flatten(batch: Batch) -> Batch:
    """``T * B`` columns of one row each, the bootstrap row dropped: samples to shuffle."""
    rows, num_columns = batch.valid.shape

    def flat(dim: int, x: Tensor) -> Tensor:
        return x[:rows].reshape(1, rows * num_columns, *x.shape[2:])

    return map_columns(flat, batch)

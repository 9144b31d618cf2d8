"""Splits batches into shuffled minibatches and normalises their advantages."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from headrace.algos.common import PolicyOutputs, policy_outputs
from headrace.ops import stacks, tree
from headrace.types import ActorCritic, Batch, Group, map_columns

_WHOLE_BYTES = 4 << 20  # larger observations are copied one minibatch at a time


def new_generator() -> torch.Generator:
    """Create a generator for shuffling, seeded from torch's seed."""
    return torch.Generator().manual_seed(torch.initial_seed() % 2**31)


@dataclass
class Minibatches:
    """Iterates over random parts of a batch with targets, in one or more passes.

    Attributes:
        batch: the whole batch; each part has its versions.
        samples: ``[1, T * B]``, or ``[T, B]`` with a recurrent policy.
        orders: columns of the samples in the order of each pass.
        count: parts per pass.
        normalize_over: scale the advantages of each part to mean 0 and standard deviation 1 over
            the valid steps of these learners; None: leave them unchanged.
        fused: reorder a whole pass at once, of which parts are views, unless observations are
            large; sums round differently.
    """

    batch: Batch
    samples: Batch
    orders: list[Tensor]
    count: int
    normalize_over: Group | None
    fused: bool

    def __iter__(self) -> Iterator[Batch]:
        samples = self.samples
        small = sum(x.nbytes for x in tree.leaves(samples.obs)) <= _WHOLE_BYTES
        at_once = self.fused and small and samples.valid.device.type == "cpu"
        cut = _whole_passes if at_once else _part_by_part
        for part in cut(samples, self.orders, self.count, self.normalize_over):
            part.version = self.batch.version
            yield part


def shuffled(
    batch: Batch,
    epochs: int,
    minibatches: int,
    generator: torch.Generator,
    normalize_over: Group | None = None,
    *,
    fused: bool = False,
) -> Minibatches:
    """Return ``epochs`` passes over a batch with targets, each in ``minibatches`` random parts.

    Args:
        normalize_over, fused: see :class:`Minibatches`.

    Returns:
        batches of ``[1, about T * B / minibatches]``, every sample once per pass. With a recurrent
        policy they are of ``[T, about B / minibatches]``, every column once per pass, and keep the
        bootstrap row; a batch of fewer columns than ``minibatches`` gives a part per column. Parts
        whose advantages are normalised have two samples or more, because a single one becomes 0;
        with several learners, one of each is enough.
    """
    samples = replace(batch, version=())
    samples = samples if tree.leaves(batch.core) else flatten(samples)
    (num_rows, num_columns), device = samples.valid.shape, samples.valid.device
    orders = [torch.randperm(num_columns, generator=generator).to(device) for _ in range(epochs)]
    alone = normalize_over is not None and normalize_over.size == 1
    least = 2 if alone and num_rows == 1 else 1  # columns of a part
    count = min(minibatches, max(1, num_columns // least))
    return Minibatches(batch, samples, orders, count, normalize_over, fused)


def split(batch: Batch, algo: Any, generator: torch.Generator, group: Group) -> Minibatches:
    """Call :func:`shuffled` with the settings of an algorithm."""
    over = group if algo.normalize_advantage else None
    return shuffled(batch, algo.epochs, algo.minibatches, generator, over, fused=algo.fused)


@torch.no_grad()
def with_targets(
    policy: ActorCritic, batch: Batch, targets: Callable[[PolicyOutputs, Batch], dict[str, Tensor]]
) -> Batch:
    """Add targets to a batch, computed from the current policy's outputs by ``targets``."""
    return replace(batch, targets=targets(policy_outputs(policy, batch), batch))


def _part_by_part(
    samples: Batch, orders: list[Tensor], count: int, normalize_over: Group | None
) -> Iterator[Batch]:
    parts = [part for order in orders for part in order.tensor_split(count)]
    if normalize_over is None:
        yield from map(samples.columns, parts)
        return
    sums = torch.stack([_advantage_sums(samples, index) for index in parts])
    sums = normalize_over.sum(sums.flatten()).view(-1, 3)  # once for all parts
    for index, (num, total, square) in zip(parts, sums.tolist(), strict=True):
        yield _normalized(samples.columns(index), num, total, square)


def _whole_passes(
    samples: Batch, orders: list[Tensor], count: int, normalize_over: Group | None
) -> Iterator[Batch]:
    if normalize_over is None:
        for order in orders:
            yield from samples.columns(order).cut(count)
        return
    sizes = torch.tensor([len(index) for index in orders[0].tensor_split(count)])
    part = torch.arange(count).repeat_interleave(sizes)  # by position in a pass
    columns = _summands(samples.valid, samples.targets["advantage"]).sum(1)
    sums = torch.zeros(len(orders), 3, count, dtype=torch.float64)
    for order, total in zip(orders, sums, strict=True):
        total.scatter_add_(1, part.expand(3, -1), columns.index_select(1, order))
    num, total, square = normalize_over.sum(sums.flatten()).view_as(sums).unbind(1)
    mean = total / num.clamp(min=1.0)
    deviation = ((square - num * mean**2).clamp(min=0.0) / (num - 1.0).clamp(min=1.0)).sqrt()
    for order, center, scale in zip(orders, mean, deviation + 1e-8, strict=True):
        batch = samples.columns(order)
        advantage = batch.targets["advantage"]
        scaled = ((advantage - center[part]) / scale[part]).to(advantage.dtype)
        yield from replace(batch, targets=batch.targets | {"advantage": scaled}).cut(count)


def normalized(batch: Batch, group: Group) -> Batch:
    """Normalise the advantages of a whole batch over the valid steps of all learners."""
    columns = torch.arange(batch.valid.shape[1], device=batch.valid.device)
    sums = group.sum(_advantage_sums(batch, columns))
    return _normalized(batch, *sums.tolist())


def _advantage_sums(samples: Batch, index: Tensor) -> Tensor:
    """Return count, sum and sum of squares of the advantages of some columns: ``[3]`` float64."""
    valid = samples.valid.index_select(1, index)
    advantage = samples.targets["advantage"].index_select(1, index)
    return torch.stack([x.sum() for x in _summands(valid, advantage)])


def _summands(valid: Tensor, advantage: Tensor) -> Tensor:
    """Stack 1, the advantage and its square, 0 on fillers: ``[3, T, B]`` float64."""
    real = advantage.double().where(valid, 0.0)
    return torch.stack([valid.double(), real, real.square()])


def _normalized(batch: Batch, count: float, total: float, square: float) -> Batch:
    """Scale advantages to mean 0 and unbiased standard deviation 1; a single one becomes 0."""
    mean = total / max(count, 1)
    deviation = math.sqrt(max(0.0, square - count * mean**2) / max(count - 1, 1))
    scaled = (batch.targets["advantage"] - mean) / (deviation + 1e-8)
    return replace(batch, targets=batch.targets | {"advantage": scaled})


def flatten(batch: Batch) -> Batch:
    """Reshape a batch to ``T * B`` columns of one row, without the bootstrap row."""
    rows, num_columns = batch.valid.shape

    def flat(dim: int, x: Tensor) -> Tensor:
        return x[:rows].reshape(1, rows * num_columns, *x.shape[2:])

    return map_columns(flat, replace(batch, obs=stacks.apart(batch.obs)))

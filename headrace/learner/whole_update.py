"""Takes all optimiser steps of an update in one call of a compiled function.

The steps are those that the learner takes one by one: the same minibatches, gradients, clipping and
optimiser, in the same order. One call saves the Python and torch operations in between, which take
longer than the arithmetic of a small network.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.algos.minibatches import Minibatches
from headrace.learner.chunks import Chunks
from headrace.learner.native import NativeNetwork, place_terms, sums_of
from headrace.learner.optimizer import Optimizer
from headrace.native.library import SUMS, Update
from headrace.ops import tree
from headrace.ops.losses import LossTerms
from headrace.types import Batch, State

_MOST_PARTS, _PER_PART = 8, 32  # most parts of a minibatch; samples of a part, per part
_STEERS = ("batches", "terms", "loss", "after_step")  # methods that determine an update


class Steps(NamedTuple):
    """Results of the completed steps, and of one more if it was rejected as not finite."""

    taken: int
    sums: list[dict[str, float]]  # over valid steps
    counts: list[int]  # valid steps
    norms: list[float]  # of the mean gradient
    gradient: Tensor  # [P] mean gradient of the last one


def has_fixed_terms(algorithm: Hyperparameters) -> bool:
    """Return ``algorithm.has_fixed_terms``, or False if a subclass overrides how it trains."""
    kind = type(algorithm)
    declares = _owner(kind, "has_fixed_terms")
    return algorithm.has_fixed_terms and all(
        issubclass(declares, _owner(kind, name)) for name in _STEERS
    )


def _owner(kind: type, name: str) -> type:
    return next(base for base in kind.__mro__ if name in vars(base))


def _terms(batches: Minibatches, algorithm: Hyperparameters, state: State) -> LossTerms:
    outputs: Any = None  # fixed terms ignore it
    return algorithm.terms(outputs, batches.samples, state)


def _are_of_samples(loss: LossTerms, batches: Minibatches) -> bool:
    """Return True if a minibatch's terms can be taken from those of the whole batch.

    Metrics of the terms are summed over all samples.
    """
    is_normalized = batches.normalize_over is not None
    advantage = batches.samples.targets["advantage"] if is_normalized else loss.advantage
    return loss.advantage is advantage and not loss.sums


class WholeUpdate:
    """Takes an update's steps with a compiled network; used by one thread.

    Args:
        chunks: how batches are split; threads share the parts of a minibatch.
    """

    def __init__(self, network: NativeNetwork, optimizer: Optimizer, chunks: Chunks) -> None:
        self._network, self._optimizer, self._chunks = network, optimizer, chunks
        self._memory, self._update = network.memory(), Update()
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def fits(self, batches: Iterable[Batch], algorithm: Hyperparameters, state: State) -> bool:
        """Return True if :meth:`steps` takes the same steps as the learner would one by one."""
        if not isinstance(batches, Minibatches) or tree.leaves(batches.samples.core):
            return False
        largest = -(-batches.samples.valid.shape[1] // batches.count)
        return (
            has_fixed_terms(algorithm)
            and self._optimizer.trains_alone(self._network.flat)
            and largest <= self._parts(algorithm, largest) * self._chunks.max_steps
            and _are_of_samples(_terms(batches, algorithm, state), batches)
        )

    def _parts(self, algorithm: Hyperparameters, size: int) -> int:
        """Return the number of parts of a minibatch of ``size`` samples, which threads share.

        In synchronous training, actors wait for the update and leave their cores free. The number
        then depends on the size alone, so results don't depend on the number of threads.
        """
        if algorithm.max_lag > 0:
            return max(1, min(self._chunks.num_threads, -(-size // self._chunks.min_steps)))
        parts = _MOST_PARTS
        while parts > 1 and size < _PER_PART * parts**2:
            parts //= 2
        return parts

    def steps(
        self, batches: Minibatches, algorithm: Hyperparameters, state: State, learning_rate: float
    ) -> Steps:
        """Take the optimiser steps, and stop before one that is not finite.

        Raises:
            IndexError: choices are out of range.
        """
        with torch.inference_mode():
            loss = _terms(batches, algorithm, state)
            sums, gradient, taken = self._take(batches, loss, algorithm, learning_rate)
        self._optimizer.counted(taken)
        if self._update.outside:
            number = self._update.outside
            raise IndexError(f"{number} choices of a batch's actions are out of range")
        scale = self._memory.network.value_scale
        *metrics, counts, norms = sums[: taken + 1].T.tolist()
        each = [sums_of(row, loss, scale) for row in zip(*metrics, strict=True)]
        return Steps(taken, each, [int(x) for x in counts], norms, gradient)

    def _take(
        self, batches: Minibatches, loss: LossTerms, algorithm: Hyperparameters, rate: float
    ) -> tuple[Tensor, Tensor, int]:
        """Call the function; returns its sums ``[S, len(SUMS) + 2]``, the gradient, and steps."""
        memory, network, update = self._memory, self._network, self._update
        samples = batches.samples
        inputs = tree.map_leaves(lambda x: x.flatten(0, 1), samples.obs)
        x, *kept = network.place_inputs(memory.network, inputs)
        kept += network.place_actions(memory.network, samples.action)
        scale, flat = memory.network.value_scale, network.flat
        kept += place_terms(memory.terms, loss, samples, algorithm, scale, flat.dtype)
        mask = network.mask(inputs)
        sizes = [len(part) for part in batches.orders[0].tensor_split(batches.count)]
        start = torch.tensor([*accumulate(sizes * len(batches.orders), initial=0)])
        order = torch.cat(batches.orders)
        sums = torch.empty(len(start) - 1, len(SUMS) + 2, dtype=torch.float64)
        gradient = torch.zeros_like(flat)  # other parameters keep 0
        update.steps, update.size = len(sums), len(flat)
        update.parts = self._parts(algorithm, max(sizes))
        update.threads = min(self._chunks.num_threads, update.parts)
        update.most = -(-max(sizes) // update.parts)
        update.order, update.start, update.x = order.data_ptr(), start.data_ptr(), x.data_ptr()
        update.mask = None if mask is None else mask.data_ptr()
        update.normalize = batches.normalize_over is not None
        update.max_norm, update.sums = algorithm.max_grad_norm, sums.data_ptr()
        update.gradient, (update.mean, update.square) = (
            gradient.data_ptr(),
            self._optimizer.moments,
        )
        update.memory = self._room(update).data_ptr()
        settings = self._optimizer.compiled_settings(rate)
        of_network, of_terms, _ = memory.addresses
        taken = network.compiled.update(
            of_network, flat.data_ptr(), of_terms, *map(ctypes.addressof, (settings, update))
        )
        del kept
        if taken < 0:
            raise MemoryError("not enough memory for the learner's threads")
        return sums, gradient, taken

    def _room(self, update: Update) -> Tensor:
        """Return memory for all parts of a step."""
        address, size = self._memory.addresses[0], self._network.flat.element_size()
        sizes = update.most, update.size, size
        update.bytes = self._network.compiled.update_bytes(address, *sizes)
        if self._bytes.numel() < update.parts * update.bytes:
            self._bytes = torch.empty(update.parts * update.bytes, dtype=torch.uint8)
        return self._bytes

"""Computes the gradient of an algorithm's loss by the fastest exact path."""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.learner.chunks import Chunks, max_steps
from headrace.learner.fused import FusedNetwork, can_fuse
from headrace.learner.metrics import checked_loss
from headrace.learner.native import NativeOutputs
from headrace.learner.optimizer import Optimizer
from headrace.learner.step_costs import step_cost
from headrace.learner.whole_update import WholeUpdate
from headrace.nn.image_precision import bfloat16_modules
from headrace.nn.policy import Policy
from headrace.types import Batch, Metrics, State

_MOST_STEPS, _WORK = 512, 40_000_000  # by autograd: steps, and multiplications of a forward pass
_MIN_STEPS, _MAX_MIN_STEPS = 512, 2048  # by hand
_MIN_WORK = 20_000_000  # by hand: steps times parameters
_NO_LIMIT = 1 << 62
_PIECE = 1 << 18  # weights whose gradients are added at a time, for a cast of them takes memory


class Gradients:
    """Computes gradients of SUMMED losses as flat vectors; safe to use from several threads.

    Args:
        state: state of the algorithm.
        flat: tensor of which the policy's parameters are views.
    """

    def __init__(
        self, policy: Policy, algorithm: Hyperparameters, state: State, flat: Tensor
    ) -> None:
        self._policy, self.algorithm, self._state = policy, algorithm, state
        self._parameters, self._device = list(policy.parameters()), flat.device
        fused = algorithm.fused and flat.device.type == "cpu" and can_fuse(policy)
        self._network = FusedNetwork(policy, flat) if fused else None
        self.begin_update()

    def begin_update(self) -> None:
        """Decide once per update whether to use autograd."""
        trains_all = all(p.requires_grad for p in self._parameters)
        self._fuses = self._network is not None and trains_all and self._network.is_current()

    @property
    def by_hand(self) -> bool:
        """Return True if the network has hand-written derivatives."""
        return self._network is not None

    @property
    def for_targets(self) -> Any:
        """Return the policy as algorithms call it for targets: without gradients."""
        native = None if self._network is None else self._network.native
        if native is None:
            return self._policy
        return NativeOutputs(self._policy, native, lambda: self._fuses)

    def whole_update(self, optimizer: Optimizer, chunks: Chunks) -> WholeUpdate | None:
        """Return the whole-update path, or None if the network is not compiled."""
        native = None if self._network is None else self._network.native
        return None if native is None else WholeUpdate(native, optimizer, chunks)

    @property
    def is_compiled(self) -> bool:
        """Return True if compiled functions compute the gradients of this update."""
        network = self._network
        if network is None or network.native is None or not self._fuses:
            return False
        return network.knows(self.algorithm, self._state)

    def chunks(self, num_threads: int, most: int) -> Chunks:
        """Return how to split batches for this network.

        Args:
            most: largest number of steps in a chunk.
        """
        if self._device.type != "cpu":
            return Chunks(1, _NO_LIMIT, _NO_LIMIT)
        # A thread needs enough steps to be worth it; short hand-written passes are mostly Python.
        if self.by_hand and self._policy.core is None:
            num = sum(p.numel() for p in self._parameters)
            return Chunks(num_threads, most, max(_MIN_STEPS, min(_MAX_MIN_STEPS, _MIN_WORK // num)))
        cost = step_cost(self._policy)
        if self._policy.precision == "bfloat16":  # in which nearly all of it is
            more = 2 if self._policy.core is None else 4  # columns: one after the other are slow
            cost = cost._replace(num_bytes=cost.num_bytes // more)
        enough = min(_MOST_STEPS, -(-_WORK // cost.products))
        return Chunks(num_threads, max_steps(cost, most), enough)

    def __call__(self, batch: Batch) -> tuple[list[Tensor], Metrics]:
        """Return the gradient of the loss on a batch, and sums of metrics.

        The gradient is a list of parts that concatenate to ``[P]``: one part, or one per parameter
        in its own dtype.
        """
        network, algorithm, state = self._network, self.algorithm, self._state
        if network is None or not self._fuses:
            return self._by_autograd(batch)
        if network.knows(algorithm, state):
            gradient, metrics = network.by_hand(algorithm, batch, state)
        else:

            def loss(policy: Policy) -> tuple[Tensor, Metrics]:
                return checked_loss(algorithm.loss(policy, batch, state), algorithm)

            gradient, metrics = network.by_autograd(loss, batch)
        return [gradient], metrics

    def frozen_weights(self) -> contextlib.AbstractContextManager[None]:
        """Return a context in which weights are constant, so bfloat16 casts them once per step."""
        by_hand = self._network is not None
        return contextlib.nullcontext() if by_hand else self._policy.frozen_weights(learns=True)

    def _by_autograd(self, batch: Batch) -> tuple[list[Tensor], Metrics]:
        returned = self.algorithm.loss(self._policy, batch, self._state)
        loss, metrics = checked_loss(returned, self.algorithm)
        stand_ins = {p: x for part in bfloat16_modules(self._policy) for p, x in part.stand_ins()}
        trained = [stand_ins.get(p, p) for p in self._parameters if p.requires_grad]
        gradients = iter(torch.autograd.grad(loss, trained, materialize_grads=True))
        of = self._parameters
        each = (next(gradients) if p.requires_grad else torch.zeros_like(p) for p in of)
        return [g.reshape(-1) for g in each], metrics


def joined(parts: list[Tensor]) -> Tensor:
    """Concatenate parts to a flat gradient ``[P]``, in float32 if any part is."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@torch.inference_mode()
def add(flat: Tensor, parts: list[Tensor]) -> None:
    """Add a gradient in parts to a flat one, in place."""
    for to, part in zip(flat.split([len(x) for x in parts]), parts, strict=True):
        for piece, more in zip(to.split(_PIECE), part.split(_PIECE), strict=True):
            piece += more

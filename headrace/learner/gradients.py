"""The gradient of an algorithm's loss, by the fastest way that knows both policy and algorithm."""

from __future__ import annotations

import contextlib
import functools

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.learner.chunks import Chunks, max_steps
from headrace.learner.fused import FusedNetwork, can_fuse
from headrace.learner.step_costs import step_cost
from headrace.nn.image_precision import halved
from headrace.nn.policy import Policy
from headrace.types import Batch, Metrics, State

_MOST_STEPS, _WORK = 512, 40_000_000  # by autograd: steps, and multiplications of a forward pass
_MIN_STEPS, _MAX_MIN_STEPS = 512, 2048  # by hand
_MIN_WORK = 20_000_000  # by hand: steps times parameters
_NO_LIMIT = 1 << 62
_PIECE = 1 << 18  # weights whose gradients are added at a time, for a cast of them takes memory


class Gradients:
    """Of SUMMED losses, as flat vectors; several threads may ask.

    Args:
        state: of the algorithm. flat: what the policy's parameters are views of.
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
        """Whether the network is one that is differentiated by hand."""
        return self._network is not None

    def chunks(self, num_threads: int, most: int) -> Chunks:
        """How batches are cut for this network.

        Args:
            most: steps of a chunk.
        """
        if self._device.type != "cpu":
            return Chunks(1, _NO_LIMIT, _NO_LIMIT)
        # Another thread pays from so many steps on; by hand, most of a short one is Python's turn.
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
        """Gradient of the loss on a batch, and the metrics' sums.

        The gradient is in parts that make ``[P]``: of each parameter in its own dtype, or whole.
        """
        network, algorithm, state = self._network, self.algorithm, self._state
        if network is None or not self._fuses:
            return self._by_autograd(batch)
        if network.knows(algorithm):
            gradient, metrics = network.by_hand(algorithm, batch, state)
        else:
            loss = functools.partial(algorithm.loss, batch=batch, state=state)
            gradient, metrics = network.by_autograd(loss, batch)
        return [gradient], metrics

    def still(self) -> contextlib.AbstractContextManager[None]:
        """Inside, the weights don't change: bfloat16 casts them once for all chunks of a step."""
        by_hand = self._network is not None
        return contextlib.nullcontext() if by_hand else self._policy.still(learns=True)

    def _by_autograd(self, batch: Batch) -> tuple[list[Tensor], Metrics]:
        loss, metrics = self.algorithm.loss(self._policy, batch, self._state)
        stand_ins = {p: x for part in halved(self._policy) for p, x in part.stand_ins()}
        trained = [stand_ins.get(p, p) for p in self._parameters if p.requires_grad]
        gradients = iter(torch.autograd.grad(loss, trained, materialize_grads=True))
        of = self._parameters
        each = (next(gradients) if p.requires_grad else torch.zeros_like(p) for p in of)
        return [g.reshape(-1) for g in each], metrics


def joined(parts: list[Tensor]) -> Tensor:
    """One flat gradient ``[P]``, float32 if any part is; a lone part itself."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


@torch.inference_mode()
def add(flat: Tensor, parts: list[Tensor]) -> None:
    """Add a gradient in parts to a flat one, in place."""
    for to, part in zip(flat.split([len(x) for x in parts]), parts, strict=True):
        for piece, more in zip(to.split(_PIECE), part.split(_PIECE), strict=True):
            piece += more

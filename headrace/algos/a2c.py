"""Synchronous advantage actor-critic: GAE, one pass over each batch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.algos.advantages import by_running_scale
from headrace.algos.common import (
    Hyperparameters,
    LearnsAt,
    PolicyOutputs,
    Span,
    by_task,
)
from headrace.algos.penalty import check_kl_limit
from headrace.ops.losses import LossTerms
from headrace.ops.returns import gae
from headrace.types import Batch, State
from headrace.validation.fields import settings


@settings()
@dataclass(frozen=True)
class A2C(Hyperparameters):
    """A2C (Mnih et al. 2016, synchronous) with generalised advantages (Schulman et al. 2016)."""

    learns_at = LearnsAt(Span(8, 32, 64), Span(4, 8, 32), Span(128, 256, 1024))

    learning_rate: float = 2e-3
    lam: float = 0.95

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self).batches is A2C.batches:
            check_kl_limit(self.kl_limit, num_steps=1)

    def terms(self, outputs: PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the terms of ``-log pi * A`` with A from GAE."""
        stream = batch.stream(outputs.value.detach())
        advantage, target = gae(*stream, gamma=self.gamma, lam=self.lam)
        advantage = by_task(outputs.popart, advantage)
        advantage, sums = by_running_scale(state, advantage, batch.valid)
        return LossTerms(advantage, target, sums=sums)

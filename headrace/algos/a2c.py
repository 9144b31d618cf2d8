"""Synchronous advantage actor-critic: GAE, one pass over each batch."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.algos.common import (
    SHORT,
    Hyperparameters,
    by_running_scale,
    policy_outputs,
    total_loss,
)
from headrace.ops import losses
from headrace.ops.returns import gae
from headrace.types import ActorCritic, Batch, Loss, State


@dataclass(frozen=True)
class A2C(Hyperparameters):
    """A2C (Mnih et al. 2016, synchronous) with generalised advantages (Schulman et al. 2016)."""

    learns_at = SHORT

    learning_rate: float = 1e-3
    lam: float = 0.95

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """``-log pi * A`` with A from GAE, plus value and entropy terms; sums."""
        outputs = policy_outputs(policy, batch)
        stream = batch.stream(outputs.value.detach())
        advantage, target = gae(*stream, gamma=self.gamma, lam=self.lam)
        advantage, sums = by_running_scale(state, advantage, batch.valid)
        policy_loss = losses.policy_gradient_loss(outputs.log_prob, advantage, batch.valid)
        loss, metrics = total_loss(self, batch, outputs, policy_loss, target)
        return loss, metrics | sums

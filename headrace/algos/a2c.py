"""Synchronous advantage actor-critic: GAE, one pass over each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.algos.common import Hyperparameters, evaluate, total_loss
from headrace.ops import losses
from headrace.ops.returns import gae
from headrace.types import ActorCritic, Batch, Fresh, Group, Metrics


@dataclass(frozen=True)
class A2C(Hyperparameters):
    """A2C (Mnih et al. 2016, synchronous) with generalised advantages (Schulman et al. 2016)."""

    learning_rate: float = 1e-3
    lam: float = 1.0

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: dict[str, Any], group: Group
    ) -> Iterator[Batch]:
        """One batch, used once."""
        yield fresh()

    def loss(
        self, policy: ActorCritic, batch: Batch, state: dict[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """See :func:`actor_critic_loss`."""
        return actor_critic_loss(self, policy, batch)


def actor_critic_loss(
    hyper: Hyperparameters, policy: ActorCritic, batch: Batch
) -> tuple[Tensor, Metrics]:
    """``-log pi * A`` with A from GAE, plus value and entropy terms; sums."""
    log_prob, entropy, value = evaluate(policy, batch)
    advantage, target = gae(
        batch.reward, value.detach(), batch.terminated, batch.first, hyper.gamma, hyper.lam
    )
    return total_loss(
        hyper,
        losses.policy_gradient_loss(log_prob, advantage, batch.valid),
        losses.value_loss(value[:-1], target, batch.valid),
        entropy,
        value[:-1],
        target,
        log_prob - batch.log_prob,
        batch,
    )

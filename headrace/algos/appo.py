"""APPO: IMPALA's machine with PPO's clipped surrogate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.algos.common import (
    Hyperparameters,
    check_clipping,
    evaluate,
    require,
    total_loss,
)
from headrace.ops import losses
from headrace.ops.returns import vtrace
from headrace.types import ActorCritic, Batch, Fresh, Metrics


@dataclass(frozen=True)
class APPO(Hyperparameters):
    """Asynchronous PPO: V-trace targets (Espeholt et al. 2018), clipped surrogate (Schulman 2017).

    The advantage is ``r + gamma v' - V`` without the factor rho: the clipped ratio carries it.
    """

    max_lag: int = 2
    """How many updates a waiting rollout may lag behind the learner."""
    learning_rate: float = 6e-4
    epochs: int = 1
    """Passes over each batch; V-trace corrects the later ones too."""
    minibatches: int = 1
    """Groups of whole columns into which each pass is split, one optimiser step each."""
    clip: float = 0.2
    """The ratio pi/mu is clipped to [1 - clip, 1 + clip] in the surrogate."""
    rho_bar: float = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: float = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        require(self.minibatches >= 1, "minibatches", self.minibatches, "1 or more")
        require(self.clip > 0, "clip", self.clip, "above 0")
        check_clipping(self.rho_bar, self.c_bar, 1.0, self.max_lag)

    def batches(self, policy: ActorCritic, fresh: Fresh, state: dict[str, Any]) -> Iterator[Batch]:
        """``epochs * minibatches`` groups of columns; targets are always the current policy's."""
        batch = fresh()
        for _ in range(self.epochs):
            yield from batch.split(-(-batch.num_steps // self.minibatches))

    def loss(
        self, policy: ActorCritic, batch: Batch, state: dict[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """Clipped surrogate on V-trace's advantage, value and entropy terms; sums."""
        log_prob, entropy, value = evaluate(policy, batch)
        log_ratio = log_prob - batch.log_prob
        returns = vtrace(
            log_ratio,
            batch.reward,
            value,
            batch.terminated,
            batch.first,
            gamma=self.gamma,
            lam=self.lam,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
        )
        policy_loss, clipped = losses.ppo_clip_loss(
            log_ratio, returns.advantage, batch.valid, self.clip
        )
        loss, metrics = total_loss(
            self,
            policy_loss,
            losses.value_loss(value[:-1], returns.vs, batch.valid),
            entropy,
            value[:-1],
            returns.vs,
            log_ratio,
            batch,
        )
        return loss, metrics | {"clipfrac": clipped}

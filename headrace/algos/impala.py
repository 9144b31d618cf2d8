"""IMPALA: decoupled actors, V-trace off-policy correction, one pass over each batch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from headrace.algos.common import Hyperparameters, check_clipping, evaluate, total_loss
from headrace.ops import losses
from headrace.ops.returns import vtrace
from headrace.types import ActorCritic, Batch, Fresh, Metrics


@dataclass(frozen=True)
class IMPALA(Hyperparameters):
    """IMPALA (Espeholt et al. 2018, section 4)."""

    max_lag: int = 2
    """How many updates a waiting rollout may lag behind the learner."""
    learning_rate: float = 6e-4
    lam: float = 1.0
    rho_bar: float = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: float = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""
    pg_rho_bar: float = 1.0
    """Clip of the ratio that weights the policy gradient."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_clipping(self.rho_bar, self.c_bar, self.pg_rho_bar, self.max_lag)

    def batches(self, policy: ActorCritic, fresh: Fresh, state: dict[str, Any]) -> Iterator[Batch]:
        """One batch, used once."""
        yield fresh()

    def loss(
        self, policy: ActorCritic, batch: Batch, state: dict[str, Any]
    ) -> tuple[Tensor, Metrics]:
        """``-rho log pi (r + gamma v' - V)`` plus value and entropy terms (section 4.2); sums."""
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
            pg_rho_bar=self.pg_rho_bar,
        )
        return total_loss(
            self,
            losses.policy_gradient_loss(log_prob, returns.pg_advantage, batch.valid),
            losses.value_loss(value[:-1], returns.vs, batch.valid),
            entropy,
            value[:-1],
            returns.vs,
            log_ratio,
            batch,
        )

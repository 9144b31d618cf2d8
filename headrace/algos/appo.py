"""APPO: IMPALA's machine with PPO's clipped surrogate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from headrace.algos import common
from headrace.errors import ABOVE_0, AT_LEAST_1, require
from headrace.ops import losses
from headrace.ops.returns import VTrace, vtrace
from headrace.types import ActorCritic, Batch, Fresh, Group, Loss, State


@dataclass(frozen=True)
class APPO(common.Hyperparameters):
    """Asynchronous PPO: V-trace targets (Espeholt et al. 2018), clipped surrogate (Schulman 2017).

    The advantage is ``r + gamma v' - V`` without the factor rho: the clipped ratio carries it.
    """

    max_lag: int = 2
    """How many updates a waiting rollout may lag behind the learner."""
    learning_rate: float = 6e-4
    epochs: Annotated[int, AT_LEAST_1] = 1
    """Passes over each batch."""
    minibatches: Annotated[int, AT_LEAST_1] = 1
    """Random parts into which each pass is split, one optimiser step each."""
    normalize_advantage: bool = False
    """Scale each minibatch's advantages to mean 0 and deviation 1; needs several minibatches."""
    clip: Annotated[float, ABOVE_0] = 0.2
    """The ratio pi/mu is clipped to [1 - clip, 1 + clip] in the surrogate."""
    rho_bar: float = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: Annotated[float, ABOVE_0] = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""

    def __post_init__(self) -> None:
        super().__post_init__()
        several = self.epochs * self.minibatches > 1
        valid = "False with epochs=1 and minibatches=1 (nearest: minibatches=2)"
        require(several or not self.normalize_advantage, "normalize_advantage", True, valid)
        common.check_clipping(self.rho_bar, self.c_bar, self.max_lag)

    def init(self, policy: ActorCritic) -> State:
        """The generator that shuffles."""
        return {"generator": common.new_generator()}

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterator[Batch]:
        """The batch as it is, or with targets computed once and then shuffled as PPO does."""
        batch = fresh()
        if self.epochs * self.minibatches == 1:
            yield batch  # its targets come from the same forward pass as its loss
            return
        with torch.no_grad():
            returns = self._returns(common.policy_outputs(policy, batch), batch)
        targets = {"advantage": returns.advantage, "vs": returns.vs}
        batch = replace(batch, targets=targets)
        over = group if self.normalize_advantage else None
        yield from common.shuffled(batch, self.epochs, self.minibatches, state["generator"], over)

    def _returns(self, outputs: common.PolicyOutputs, batch: Batch) -> VTrace:
        return vtrace(
            outputs.log_prob - batch.log_prob,
            *batch.stream(outputs.value),
            gamma=self.gamma,
            lam=self.lam,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
        )

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """Clipped surrogate on V-trace's advantage, value and entropy terms; sums."""
        outputs = common.policy_outputs(policy, batch)
        if batch.targets:
            advantage, target = batch.targets["advantage"], batch.targets["vs"]
        else:
            target, _, advantage = self._returns(outputs, batch)
        log_ratio = outputs.log_prob - batch.log_prob
        policy_loss, clipped = losses.ppo_clip_loss(log_ratio, advantage, batch.valid, self.clip)
        loss, metrics = common.total_loss(self, batch, outputs, policy_loss, target)
        return loss, metrics | {"clipfrac": clipped}

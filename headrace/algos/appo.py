"""APPO: PPO's clipped surrogate with IMPALA's asynchronous actors."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import torch
from torch import Tensor

from headrace.algos import common
from headrace.algos.advantages import by_running_scale, running_advantage
from headrace.algos.minibatches import new_generator, split, with_targets
from headrace.ops.losses import LossTerms
from headrace.ops.returns import gae, vtrace
from headrace.types import ActorCritic, Batch, Fresh, Group, State
from headrace.validation import ranges
from headrace.validation.fields import settings

_MAX_LOG_RATIO = 20.0  # bound of unclipped weights: exp(89) is infinite in float32


@settings()
@dataclass(frozen=True)
class APPO(common.Hyperparameters):
    """Asynchronous PPO: clipped surrogate (Schulman 2017) on rollouts of slightly older policies.

    V-trace's advantage (Espeholt et al. 2018) is ``r + gamma v' - V`` without the factor rho,
    because the clipped ratio includes it.
    """

    max_lag: Annotated[int, ranges.LAG_OF_1] = 1
    """Largest policy lag of a rollout, in updates, when the learner trains on it. Rollouts of at
    most max_lag + 1 updates are in flight; older ones are dropped."""
    learning_rate: float = 7e-4
    kl_limit: float | None = 0.05
    """Reduce the learning rate after updates whose mean KL(mu || pi) exceeds this, in nats, and
    restore it after updates below half of this; None: never. Large KLs are rare. They occur when
    advantages are mostly noise, for example once values are nearly exact."""
    epochs: Annotated[int, ranges.COUNT] = 6
    """Passes over each batch."""
    minibatches: Annotated[int, ranges.SIZE] = 16
    """Random parts into which each pass is split, one optimiser step each."""
    off_policy: Literal["vtrace", "gae"] = "vtrace"
    """Compute targets by V-trace, or by GAE as if rollouts were on-policy. With a lag of one or two
    updates the bias of GAE is often smaller than the loss from V-trace's shorter traces."""
    clip: Annotated[float, ranges.ABOVE_0] = 0.2
    """Clip the ratio to [1 - clip, 1 + clip] in the surrogate."""
    clip_around: Literal["behaviour", "learner"] = "behaviour"
    """Denominator of the clipped ratio: the behaviour policy mu, or the learner's policy before the
    update, whose ratio to mu weights the advantage (decoupled clipping, Hilton et al. 2022)."""
    rho_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""
    pg_rho_bar: Annotated[float | None, ranges.ABOVE_0_OR_INF] = None
    """Weight advantages with the ratio before the update, clipped to this. None: no weight, or an
    unclipped one with clip_around=learner, which needs it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_clipping(self.rho_bar, self.c_bar)

    def init(self, policy: ActorCritic) -> State:
        """Create the generator for shuffling, and moments of advantages for whole batches."""
        state: State = {"generator": new_generator()}
        return state if self._is_split else state | running_advantage(self.normalize_advantage)

    @property
    def _is_split(self) -> bool:
        return self.epochs * self.minibatches > 1

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Return the whole batch, or minibatches with targets that are computed once, as in PPO."""
        batch = fresh()
        if not self._is_split:
            return [batch]  # its targets come from the same forward pass as its loss
        batch = with_targets(policy, batch, self._targets)
        return split(batch, self, state["generator"], group)

    @property
    def has_fixed_terms(self) -> bool:
        """Return True with minibatches, whose targets are computed once."""
        return self._is_split

    @torch.no_grad()
    def _targets(self, outputs: common.PolicyOutputs, batch: Batch) -> dict[str, Tensor]:
        """Compute ``advantage`` and ``vs``, and ``weight`` and ``log_prob`` before the update."""
        stream = batch.stream(outputs.value)
        settings: dict[str, Any] = {"gamma": self.gamma, "lam": self.lam}
        log_ratio = outputs.log_prob - batch.log_prob
        if self.off_policy == "gae":
            advantage, vs = gae(*stream, **settings)
        else:
            settings |= {"rho_bar": self.rho_bar, "c_bar": self.c_bar}
            vs, _, advantage = vtrace(log_ratio, *stream, **settings)
        targets = {"advantage": common.by_task(outputs.popart, advantage), "vs": vs}
        if self.clip_around == "learner":
            targets["log_prob"] = outputs.log_prob.detach()
        if self.clip_around == "learner" or self.pg_rho_bar is not None:
            ratio = torch.where(batch.valid, log_ratio, 0.0).clamp(max=_MAX_LOG_RATIO).exp()
            targets["weight"] = ratio.clamp(max=self.pg_rho_bar or math.inf)
        return targets

    def terms(self, outputs: common.PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the clipped surrogate, with the batch's targets or those of this forward pass."""
        targets = batch.targets or self._targets(outputs, batch)
        advantage, sums = by_running_scale(state, targets["advantage"], batch.valid)
        old, weight = targets.get("log_prob"), targets.get("weight")
        of = advantage, targets["vs"], self.clip
        return LossTerms(*of, old_log_prob=old, weight=weight, sums=sums)

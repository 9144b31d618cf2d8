"""Synchronous PPO: targets once, then epochs of shuffled minibatches with a clipped surrogate."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from headrace.algos import common
from headrace.algos.minibatches import new_generator, split
from headrace.algos.penalty import Penalty, check_kl_limit, check_penalty
from headrace.ops.losses import LossTerms
from headrace.ops.returns import gae
from headrace.types import ActorCritic, Batch, Fresh, Group, State
from headrace.validation import ranges
from headrace.validation.fields import settings


@settings()
@dataclass(frozen=True)
class PPO(common.Hyperparameters):
    """PPO (Schulman et al. 2017): clipped surrogate, optionally with an adaptive KL penalty."""

    FIXED = (*common.Hyperparameters.FIXED, "kl_target")

    learning_rate: float = 7e-4
    epochs: Annotated[int, ranges.COUNT] = 6
    """Passes over each batch."""
    minibatches: Annotated[int, ranges.SIZE] = 16
    """Random parts into which each pass is split, one optimiser step each."""
    clip: Annotated[float, ranges.ABOVE_0] = 0.2
    """Clip the ratio pi/mu to [1 - clip, 1 + clip]."""
    value_clip: Annotated[float | None, ranges.ABOVE_0] = None
    """Clip the value's change per update to this (with normalize_values in standard deviations of
    its targets); None: no clipping."""
    normalize_advantage: bool | None = True
    """Scale each minibatch's advantages to mean 0 and standard deviation 1."""
    kl_coef: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Weight of the penalty KL(mu || pi) at the start."""
    kl_target: Annotated[float | None, ranges.ABOVE_0] = None
    """Adapt kl_coef so that the KL per update stays near this (Schulman 2017, section 4)."""
    kl_stop: Annotated[float | None, ranges.ABOVE_0] = None
    """Stop an update early, with all its epochs, once a minibatch's KL exceeds this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if type(self).batches is PPO.batches:
            check_kl_limit(self.kl_limit, self.epochs * self.minibatches)
        check_penalty(self.kl_coef, self.kl_target, self.epochs * self.minibatches)

    def init(self, policy: ActorCritic) -> State:
        """Create the penalty, which averages the KL of the last epoch, and the generator."""
        penalty = Penalty(self.kl_coef, self.kl_target, window=self.minibatches)
        return {"penalty": penalty, "generator": new_generator()}

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Compute targets before the first step, then return ``epochs * minibatches`` parts."""
        state["penalty"].follow(self.kl_coef)
        state["penalty"].adapt()
        batch = self._with_targets(policy, fresh())
        return split(batch, self, state["generator"], group)

    def _with_targets(self, policy: ActorCritic, batch: Batch) -> Batch:
        with torch.no_grad():
            value = policy.values(batch.obs, batch.first, batch.core)
            advantage, target = gae(*batch.stream(value), gamma=self.gamma, lam=self.lam)
            advantage = common.by_task(common.units_of(policy, batch), advantage)
        targets = {"advantage": advantage, "target": target, "old_value": value[:-1]}
        return replace(batch, targets=targets)

    def terms(self, outputs: common.PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the terms: clipped surrogate, optional clipped value loss, and KL penalty."""
        targets = batch.targets
        return LossTerms(
            targets["advantage"],
            targets["target"],
            self.clip,
            old_value=targets["old_value"],
            value_clip=self.value_clip,
            kl_coef=state["penalty"].coef,
        )

    @property
    def has_fixed_terms(self) -> bool:
        """Return True unless the KL may stop an update."""
        return self.kl_stop is None

    def after_step(self, policy: ActorCritic, state: State, metrics: dict[str, float]) -> bool:
        """Record the KL for the next update's penalty; return True if it exceeds ``kl_stop``."""
        state["penalty"].note(metrics["approx_kl"])
        return self.kl_stop is not None and metrics["approx_kl"] > self.kl_stop

"""Synchronous PPO: targets once, then epochs of shuffled minibatches with a clipped surrogate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated

import torch

from headrace.algos import common
from headrace.algos.minibatches import new_generator, shuffled
from headrace.errors import ABOVE_0, AT_LEAST_0, AT_LEAST_1
from headrace.ops import losses
from headrace.ops.returns import gae
from headrace.types import ActorCritic, Batch, Fresh, Group, Loss, State


@dataclass(frozen=True)
class PPO(common.Hyperparameters):
    """PPO (Schulman et al. 2017): clipped surrogate, optionally with an adaptive KL penalty."""

    learning_rate: float = 7e-4
    epochs: Annotated[int, AT_LEAST_1] = 6
    """Passes over each batch."""
    minibatches: Annotated[int, AT_LEAST_1] = 16
    """Parts into which each pass is split."""
    clip: Annotated[float, ABOVE_0] = 0.2
    """The ratio pi/mu is clipped to [1 - clip, 1 + clip]."""
    value_clip: float | None = None
    """Clip the value's change per update to this (with normalize_values in deviations of its
    targets); None: no clipping."""
    normalize_advantage: bool | None = True
    """Scale each minibatch's advantages to mean 0 and standard deviation 1."""
    kl_coef: Annotated[float, AT_LEAST_0] = 0.0
    """Weight of the penalty KL(mu || pi) at the start."""
    kl_target: float | None = None
    """Adapt kl_coef so that the KL per update stays near this (Schulman 2017, section 4)."""
    kl_stop: float | None = None
    """End an update early, in all epochs, once a minibatch's KL exceeds this."""

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_penalty(self.kl_coef, self.kl_target, self.epochs * self.minibatches)

    def init(self, policy: ActorCritic) -> State:
        """The penalty, whose KL is that of the last epoch, and the generator that shuffles."""
        penalty = common.Penalty(self.kl_coef, self.kl_target, window=self.minibatches)
        return {"penalty": penalty, "generator": new_generator()}

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterator[Batch]:
        """Targets from the policy before the first step, then ``epochs * minibatches`` parts."""
        state["penalty"].adapt()
        batch = self._with_targets(policy, fresh())
        over = group if self.normalize_advantage else None
        yield from shuffled(batch, self.epochs, self.minibatches, state["generator"], over)

    def _with_targets(self, policy: ActorCritic, batch: Batch) -> Batch:
        with torch.no_grad():
            _, value, _ = policy(batch.obs, batch.first, batch.core)
            advantage, target = gae(*batch.stream(value), gamma=self.gamma, lam=self.lam)
        targets = {"advantage": advantage, "target": target, "old_value": value[:-1]}
        return replace(batch, targets=targets)

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """Clipped surrogate, value loss, entropy bonus and KL penalty; sums."""
        outputs, targets = common.policy_outputs(policy, batch), batch.targets
        log_ratio, value_loss = outputs.log_prob - batch.log_prob, None
        policy_loss, clipped = losses.ppo_clip_loss(
            log_ratio, targets["advantage"], batch.valid, self.clip
        )
        if self.value_clip is not None:
            value, old = outputs.value[: len(batch.valid)], targets["old_value"]
            value, old, target = (
                common.in_own_units(outputs, x) for x in (value, old, targets["target"])
            )
            value_loss = losses.clipped_value_loss(value, old, target, batch.valid, self.value_clip)
        loss, metrics = common.total_loss(
            self, batch, outputs, policy_loss, targets["target"], value_loss=value_loss
        )
        if state["penalty"].coef > 0:
            loss = loss + state["penalty"].coef * losses.approx_kl(log_ratio, batch.valid)
        return loss, metrics | {"clipfrac": clipped}

    def after_step(self, policy: ActorCritic, state: State, metrics: dict[str, float]) -> bool:
        """Remember the KL for the next update's penalty; stop when it is too large."""
        state["penalty"].note(metrics["approx_kl"])
        return self.kl_stop is not None and metrics["approx_kl"] > self.kl_stop

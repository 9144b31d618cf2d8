"""IMPALA: decoupled actors, V-trace off-policy correction, and optional uniform replay."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor

from headrace.algos import common
from headrace.algos.advantages import by_running_scale, running_advantage
from headrace.algos.minibatches import new_generator, split, with_targets
from headrace.algos.replay import ReplayBuffer, concatenate
from headrace.errors import require
from headrace.ops.losses import LossTerms
from headrace.ops.returns import vtrace
from headrace.types import ActorCritic, Batch, Fresh, Group, State
from headrace.validation import ranges
from headrace.validation.fields import settings

_EPSILON = 1e-6  # section 5.2.2
_FRACTION = ranges.Range(0, 1, below=True, words="at least 0 and below 1 (the paper's: 0.5)")


@settings()
@dataclass(frozen=True)
class IMPALA(common.Hyperparameters):
    """IMPALA (Espeholt et al. 2018, section 4) with several passes over each batch.

    The weights min(pg_rho_bar, pi/mu) of the policy gradient are recomputed at each optimiser step.
    Without ``clip``, entropy collapses in several passes before the policy improves. The paper's
    form is ``IMPALA(epochs=1, minibatches=1, clip=inf)``.
    """

    learns_at = common.LearnsAt(
        common.Span(8, 32, 64), common.Span(8, 16, 64), common.Span(256, 512, 2048)
    )

    FIXED = (*common.Hyperparameters.FIXED, "replay_fraction")

    max_lag: Annotated[int, ranges.LAG_OF_1] = 1
    """Largest policy lag of a rollout, in updates, when the learner trains on it. Rollouts of at
    most max_lag + 1 updates are in flight; older ones are dropped. Replayed trajectories may be
    older."""
    learning_rate: float = 1e-3
    lam: float = 0.95
    rho_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""
    pg_rho_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the ratio that weights the policy gradient."""

    epochs: Annotated[int, ranges.COUNT] = 6
    """Passes over each batch."""
    minibatches: Annotated[int, ranges.SIZE] = 4
    """Random parts into which each pass is split, one optimiser step each; the paper uses 1."""

    clip: Annotated[float, ranges.ABOVE_0_OR_INF] = 0.2
    """Drop samples from the policy gradient once their ratio is beyond 1 - clip or 1 + clip in the
    direction of their advantage, as in PPO; inf: never, as in the paper. The corrections epsilon
    and none have no ratio to clip: use epochs=1."""

    correction: Literal["vtrace", "one_step", "epsilon", "none"] = "vtrace"
    """Off-policy correction (section 5.2.2). All except vtrace use plain n-step targets. one_step:
    the ratio weights the advantage; epsilon: log(pi + 1e-6) in the policy gradient."""
    replay_fraction: Annotated[float, _FRACTION] = 0.0
    """Fraction of each batch that is sampled from replay; the paper used 0.5."""
    replay_capacity: Annotated[int, ranges.SIZE] = 1024
    """Number of trajectories in replay, each fragment_length steps of one environment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_clipping(self.rho_bar, self.c_bar)

    def per_learner(self, num_learners: int) -> IMPALA:
        """Return settings with one learner's share of the replay buffer."""
        share, odd = divmod(self.replay_capacity, num_learners)
        near = max(1, round(self.replay_capacity / num_learners)) * num_learners
        valid = f"a multiple of num_learners={num_learners} (nearest: {near})"
        possible = self.replay_fraction == 0 or not odd
        require(possible, "replay_capacity", self.replay_capacity, valid)
        return replace(self, replay_capacity=max(1, share))

    def reuse_updates(self, num_columns: int) -> int:
        """Return the updates that replace the whole replay buffer; 0 without replay."""
        return -(-self.replay_capacity // num_columns) if self.replay_fraction > 0 else 0

    def columns_held(self, num_columns: int) -> int:
        """Return the columns of the batch, its copy with replayed ones, and the replay buffer."""
        if self.replay_fraction == 0:
            return num_columns
        joined = math.ceil(num_columns / (1.0 - self.replay_fraction))
        return num_columns + joined + self.replay_capacity

    def init(self, policy: ActorCritic) -> State:
        """Create replay buffer, generator and moments of advantages, as needed."""
        state: State = {} if self._is_split else running_advantage(self.normalize_advantage)
        if self._is_split or self.replay_fraction > 0:
            state["generator"] = new_generator()
        if self.replay_fraction > 0:
            device = next(cast(torch.nn.Module, policy).parameters()).device
            state |= {"replay": ReplayBuffer(self.replay_capacity, device), "owed": 0.0}
        return state

    @property
    def _is_split(self) -> bool:
        return self.epochs * self.minibatches > 1

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Return the whole batch, or minibatches with targets that are computed once, as in PPO."""
        batch = self._with_replay(fresh(), state)
        if not self._is_split:
            return [batch]  # its targets come from the same forward pass as its loss
        batch = with_targets(policy, batch, self._targets)
        return split(batch, self, state["generator"], group)

    def _with_replay(self, batch: Batch, state: State) -> Batch:
        """Append replayed columns to a fresh batch, and add the batch to the replay buffer."""
        if self.replay_fraction == 0:
            return batch
        replay: ReplayBuffer = state["replay"]
        parts = [batch]
        if len(replay):
            share = self.replay_fraction / (1.0 - self.replay_fraction)
            state["owed"] += share * batch.valid.shape[1]
            num_drawn = int(state["owed"] + 1e-9)
            state["owed"] -= num_drawn  # fractions of a column carry over to later batches
            if num_drawn:
                parts.append(replay.sample(num_drawn, state["generator"]))
        replay.add(batch)
        return concatenate(parts)

    def terms(self, outputs: common.PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the terms of ``-rho log pi (r + gamma v' - V)`` (section 4.2)."""
        targets = batch.targets or self._targets(outputs, batch)
        advantage, sums = by_running_scale(state, targets["advantage"], batch.valid)
        terms = LossTerms(advantage, targets["vs"], sums=sums)
        if self.correction in ("vtrace", "one_step"):
            return terms._replace(clip=self.clip, max_ratio=self.pg_rho_bar)
        return terms._replace(epsilon=_EPSILON if self.correction == "epsilon" else 0.0)

    @property
    def has_fixed_terms(self) -> bool:
        """Return True with minibatches, whose targets are computed once."""
        return self._is_split

    @torch.no_grad()
    def _targets(self, outputs: common.PolicyOutputs, batch: Batch) -> dict[str, Tensor]:
        """Compute ``vs`` and ``advantage``, by V-trace or from n-step returns."""
        log_ratio = outputs.log_prob - batch.log_prob
        stream = batch.stream(outputs.value)
        settings: dict[str, Any] = {"gamma": self.gamma, "lam": self.lam}
        if self.correction == "vtrace":
            settings |= {"rho_bar": self.rho_bar, "c_bar": self.c_bar}
            vs, _, advantage = vtrace(log_ratio, *stream, **settings)
        else:
            ones = torch.zeros_like(log_ratio)  # as log-ratios
            vs, _, advantage = vtrace(ones, *stream, **settings)
        return {"vs": vs, "advantage": common.by_task(outputs.popart, advantage)}

"""IMPALA: decoupled actors, V-trace off-policy correction, optionally with uniform replay."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch

from headrace.algos import common
from headrace.algos.replay import ReplayBuffer, concatenate
from headrace.errors import A_COUNT, ABOVE_0, Valid, require, require_choice
from headrace.ops import losses
from headrace.ops.returns import VTrace, vtrace
from headrace.types import ActorCritic, Batch, Fresh, Group, Loss, State

_EPSILON = 1e-6  # section 5.2.2
_FRACTION = Valid("at least 0 and below 1 (the paper's: 0.5)", lambda x: 0 <= x < 1)


@dataclass(frozen=True)
class IMPALA(common.Hyperparameters):
    """IMPALA (Espeholt et al. 2018, section 4)."""

    max_lag: int = 2
    """How many updates a waiting rollout may lag behind the learner."""
    learning_rate: float = 6e-4
    lam: float = 1.0
    rho_bar: float = 1.0
    """Clip of the importance ratio in the temporal difference: fixes the value's fixed point."""
    c_bar: Annotated[float, ABOVE_0] = 1.0
    """Clip of the ratio in the trace coefficients: speed of contraction."""
    pg_rho_bar: Annotated[float, ABOVE_0] = 1.0
    """Clip of the ratio that weights the policy gradient."""

    correction: Literal["vtrace", "one_step", "epsilon", "none"] = "vtrace"
    """Off-policy correction (section 5.2.2); all but vtrace have plain n-step targets. one_step:
    the ratio weights the advantage; epsilon: log(pi + 1e-6) in the policy gradient; none: none."""
    replay_fraction: Annotated[float, _FRACTION] = 0.0
    """Share of each batch that is drawn from earlier trajectories; the paper tried 0.5."""
    replay_capacity: Annotated[int, A_COUNT] = 1024
    """Trajectories of fragment_length steps of one environment that are kept for replay."""

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_clipping(self.rho_bar, self.c_bar, self.max_lag)
        require_choice("correction", self.correction, ("vtrace", "one_step", "epsilon", "none"))

    def per_learner(self, num_learners: int) -> IMPALA:
        """Each learner holds its share of the replayed columns."""
        share, odd = divmod(self.replay_capacity, num_learners)
        near = max(1, round(self.replay_capacity / num_learners)) * num_learners
        valid = f"a multiple of num_learners={num_learners} (nearest: {near})"
        possible = self.replay_fraction == 0 or not odd
        require(possible, "replay_capacity", self.replay_capacity, valid)
        return replace(self, replay_capacity=max(1, share))

    def init(self, policy: ActorCritic) -> State:
        """The replay buffer and the generator that draws from it, if there is replay."""
        if self.replay_fraction == 0:
            return {}
        device = next(cast(torch.nn.Module, policy).parameters()).device
        buffer = ReplayBuffer(self.replay_capacity, device)
        return {"replay": buffer, "owed": 0.0, "generator": common.new_generator()}

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterator[Batch]:
        """One batch, used once; with replay, beside the columns that are drawn for it."""
        batch = fresh()
        if self.replay_fraction == 0:
            yield batch
            return
        replay: ReplayBuffer = state["replay"]
        parts = [batch]
        if len(replay):
            share = self.replay_fraction / (1.0 - self.replay_fraction)
            state["owed"] += share * batch.valid.shape[1]
            num_drawn = int(state["owed"] + 1e-9)
            state["owed"] -= num_drawn  # what is left of a column is drawn with a later batch
            if num_drawn:
                parts.append(replay.sample(num_drawn, state["generator"]))
        replay.add(batch)
        yield concatenate(parts)

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """``-rho log pi (r + gamma v' - V)`` plus value and entropy terms (section 4.2); sums."""
        outputs = common.policy_outputs(policy, batch)
        log_prob, (vs, advantage, _) = outputs.log_prob, self._returns(outputs, batch)
        if self.correction == "epsilon":
            policy_loss = losses.epsilon_policy_gradient_loss(
                log_prob, advantage, batch.valid, _EPSILON
            )
        else:
            policy_loss = losses.policy_gradient_loss(log_prob, advantage, batch.valid)
        return common.total_loss(self, batch, outputs, policy_loss, vs)

    def _returns(self, outputs: common.PolicyOutputs, batch: Batch) -> VTrace:
        """V-trace's, or n-step targets with the weight on the advantage that the correction has."""
        log_ratio = outputs.log_prob.detach() - batch.log_prob
        stream = batch.stream(outputs.value)
        decay: dict[str, Any] = {"gamma": self.gamma, "lam": self.lam}
        if self.correction == "vtrace":
            bars = {"rho_bar": self.rho_bar, "c_bar": self.c_bar, "pg_rho_bar": self.pg_rho_bar}
            return vtrace(log_ratio, *stream, **decay | bars)
        returns = vtrace(torch.zeros_like(log_ratio), *stream, **decay)  # all ratios are 1
        if self.correction != "one_step":
            return returns
        ratio = torch.where(batch.valid, log_ratio, 0.0).exp()
        weighted = ratio.clamp(max=self.pg_rho_bar) * returns.advantage
        return returns._replace(pg_advantage=weighted)

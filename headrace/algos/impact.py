"""IMPACT: several passes over batches in a circular buffer, with a target network."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, cast

import torch
from torch import Tensor

from headrace.algos import common
from headrace.algos.minibatches import normalized
from headrace.algos.penalty import Penalty, check_penalty
from headrace.algos.replay import CircularBuffer
from headrace.ops import losses
from headrace.ops.losses import LossTerms
from headrace.ops.ratio import surrogate_log_prob
from headrace.ops.returns import vtrace
from headrace.types import ActorCritic, Batch, Fresh, Group, Loss, PolicyProxy, State
from headrace.validation import ranges
from headrace.validation.fields import settings

_NO_LEARNING = 4  # with target updates every 1 to 4 steps training fails (section 4.1.1)


@settings()
@dataclass(frozen=True)
class IMPACT(common.Hyperparameters):
    """IMPACT (Luo et al. 2020, Algorithm 1).

    The target network evaluates a batch once, on its first pass. Its values, log-probabilities and
    distributions give the advantages, which may be normalised over the batch, and value targets.
    """

    learns_at = common.LearnsAt(
        common.Span(4, 8, 32), common.Span(16, 64, 128), common.Span(256, 512, 2048)
    )

    FIXED = (*common.Hyperparameters.FIXED, "kl_target")

    max_lag: Annotated[int, ranges.LAG_OF_1] = 1
    """Number of batches that may wait for the learner. Each is used for ``passes`` steps, so the
    lag in updates is longer: up to ``max_updates(max_lag)`` at its first use, when rollouts that
    are too old are dropped, and ``(passes - 1) * buffer_size`` steps more at its last use."""
    learning_rate: float = 1e-3
    lam: float = 0.95
    buffer_size: Annotated[int, ranges.COUNT] = 8
    """N: slots of the circular buffer, visited in turn, one optimiser step each."""
    passes: Annotated[int, ranges.COUNT] = 10
    """K: number of passes over each batch."""
    t_target: Annotated[int | None, ranges.COUNT] = None
    """Optimiser steps between updates of the target network; None: buffer_size * passes."""
    t_frequency: Annotated[int, ranges.COUNT] = 1
    """Optimiser steps between broadcasts of the weights to the actors."""
    ratio: Literal["R1", "R2", "R3"] = "R3"
    """R3: pi / max(target, mu / rho), the paper's; R1: pi / target; R2: pi / mu."""
    rho: Annotated[float, ranges.AT_LEAST_1_OR_INF] = 2.0
    """Target-worker clipping of R3: largest ratio mu / target; inf turns R3 into R1."""
    clip: Annotated[float, ranges.ABOVE_0] = 0.3
    """Clip the ratio to [1 - clip, 1 + clip] in the surrogate."""
    rho_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the ratio target / mu in the temporal difference."""
    c_bar: Annotated[float, ranges.ABOVE_0_OR_INF] = 1.0
    """Clip of the ratio target / mu in the trace coefficients."""
    kl_coef: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Weight of the penalty KL(target || pi) at the start."""
    kl_target: Annotated[float | None, ranges.ABOVE_0] = None
    """Adapt kl_coef at each target update so that the KL before it stays near this."""
    value_coef: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        common.check_clipping(self.rho_bar, self.c_bar)
        check_penalty(self.kl_coef, self.kl_target, self.resolved_t_target)
        if self.t_target is not None and self.t_target <= _NO_LEARNING:
            warnings.warn(
                f"t_target={self.t_target}: in the paper training failed with 1 to {_NO_LEARNING}; "
                f"buffer_size * passes = {self.buffer_size * self.passes} makes IMPACT similar to "
                "PPO",
                stacklevel=4,
            )

    @property
    def resolved_t_target(self) -> int:
        """Optimiser steps between updates of the target network."""
        return self.buffer_size * self.passes if self.t_target is None else self.t_target

    @property
    def steps_per_batch(self) -> int:
        """K: each pass over a batch is one optimiser step."""
        return self.passes

    @property
    def only(self) -> dict[str, tuple[Any, str]]:
        """Return settings that allow only one value; several policies need data at other times."""
        return super().only | {"policies": ("shared", "whose updates are not one batch each")}

    def max_updates(self, num_batches: int) -> int:
        """Return the updates for N new batches in N steps, and none in ``(K - 1) * N`` steps."""
        gaps = num_batches // self.buffer_size + 1
        steps = num_batches + gaps * (self.passes - 1) * self.buffer_size
        return -(-steps // self.t_frequency)

    def reuse_updates(self, num_columns: int) -> int:
        """Return the updates of ``(K - 1) * N`` optimiser steps."""
        return -(-(self.passes - 1) * self.buffer_size // self.t_frequency)

    def columns_held(self, num_columns: int) -> int:
        """Return the columns in the circular buffer."""
        return self.buffer_size * num_columns

    def init(self, policy: ActorCritic) -> State:
        """Create the target network, the circular buffer, the step count and the penalty."""
        target = cast(torch.nn.Module, copy.deepcopy(policy)).eval().requires_grad_(False)
        device = next(target.parameters()).device
        return {
            "target": target,
            "buffer": CircularBuffer(self.buffer_size, self.passes, device),
            "steps": 0,
            "target_is_due": False,
            "penalty": Penalty(self.kl_coef, self.kl_target, window=self.buffer_size),
        }

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterator[Batch]:
        """Yield ``t_frequency`` iterations of Algorithm 1: slots of the circular buffer in turn.

        The target network is updated just before its next use, so that it has the same running
        statistics of observations as the policy in the actors.
        """
        target = policy.of(state["target"]) if isinstance(policy, PolicyProxy) else state["target"]
        state["penalty"].follow(self.kl_coef)
        for _ in range(self.t_frequency):
            if state["target_is_due"]:
                copy_module(cast(torch.nn.Module, policy), state["target"])
                state["target_is_due"] = False
            yield state["buffer"].visit(
                state["steps"], lambda: self._with_targets(target, fresh(), group)
            )

    @torch.no_grad()
    def _with_targets(self, target: ActorCritic, batch: Batch, group: Group) -> Batch:
        """Add targets to a batch: Algorithm 1, line 7, with the V-trace-GAE of section 3.1."""
        outputs = common.policy_outputs(target, batch)
        returns = vtrace(
            outputs.log_prob - batch.log_prob,
            *batch.stream(outputs.value),
            gamma=self.gamma,
            lam=self.lam,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
        )
        targets = {
            "params": outputs.params.clone(),  # a view would also keep the bootstrap row
            "log_prob": outputs.log_prob,
            "advantage": common.by_task(outputs.popart, returns.vs - outputs.value[:-1]),
            "vs": returns.vs,
        }
        batch = replace(batch, targets=targets)
        return normalized(batch, group) if self.normalize_advantage else batch

    def terms(self, outputs: common.PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the terms of surrogate, value loss and entropy bonus (line 8)."""
        targets, behaviour = batch.targets, batch.log_prob
        old = surrogate_log_prob(targets["log_prob"], behaviour, self.ratio, self.rho)
        with torch.no_grad():
            kl = self._divergence(outputs, batch, state)
        return LossTerms(
            targets["advantage"], targets["vs"], self.clip, old_log_prob=old, sums={"target_kl": kl}
        )

    def has_whole_loss(self, state: State) -> bool:
        """Return True unless there is a KL penalty."""
        return type(self).loss is IMPACT.loss and state["penalty"].coef == 0

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """Return the loss of the terms and the KL penalty as a sum."""
        outputs = common.policy_outputs(policy, batch)
        loss, metrics = common.loss_of(self, self.terms(outputs, batch, state), outputs, batch)
        if state["penalty"].coef > 0:
            loss = loss + state["penalty"].coef * self._divergence(outputs, batch, state)
        return loss, metrics

    def _divergence(self, outputs: common.PolicyOutputs, batch: Batch, state: State) -> Tensor:
        """Return KL(target || pi), summed over valid steps."""
        targets, distribution = batch.targets, state["target"].distribution
        each = distribution.kl(targets["params"], outputs.params)
        return losses.masked_sum(each, batch.valid)

    def after_step(self, policy: ActorCritic, state: State, metrics: dict[str, float]) -> bool:
        """Count the step; every ``t_target`` steps the target is due for an update (line 11)."""
        state["steps"] += 1
        state["penalty"].note(metrics["target_kl"])
        if state["steps"] % self.resolved_t_target == 0:
            state["penalty"].adapt()
            state["target_is_due"] = True
        return False


@torch.no_grad()
def copy_module(source: torch.nn.Module, target: torch.nn.Module) -> None:
    """Copy all parameters and buffers, including non-persistent ones, into ``target``."""
    ours, theirs = ([*module.parameters(), *module.buffers()] for module in (target, source))
    for x, y in zip(ours, theirs, strict=True):
        x.copy_(y)

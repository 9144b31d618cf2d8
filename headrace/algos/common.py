"""Shared parts of all algorithms: common hyperparameters, and value and entropy losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple, cast

import torch
from torch import Tensor

from headrace import schedules
from headrace.algos.advantages import note_advantage, running_advantage
from headrace.errors import require
from headrace.ops import losses
from headrace.ops.action_bounds import ActionBounds, bounds_loss
from headrace.ops.losses import LossTerms
from headrace.types import ActorCritic, Batch, Fresh, Group, Loss, Metrics, State
from headrace.validation import ranges
from headrace.validation.fields import check_arguments, check_fields, settings


class Span(NamedTuple):
    """Range of a size in which an algorithm trained well in our benchmarks, and the best value."""

    least: int
    best: int
    most: int


class LearnsAt(NamedTuple):
    """Ranges from which ``auto`` sizes are chosen on any machine; totals of all learners."""

    num_envs: Span
    fragment_length: Span
    batch_size: Span


@settings()
@dataclass(frozen=True)
class Hyperparameters:
    """Base class of algorithms: the hyperparameters of learner and optimiser, and their methods."""

    USAGE: ClassVar[str] = (
        "an algorithm takes hyperparameters by name, and the network follows from the spaces; "
        "write hr.train(env, hr.PPO())"
    )
    # Floats that can't be schedules.
    FIXED: ClassVar[tuple[str, ...]] = ("lr_warmup", "noise_color", "kl_limit")

    learns_at: ClassVar[LearnsAt] = LearnsAt(
        Span(8, 32, 64), Span(16, 64, 128), Span(512, 2048, 4096)
    )

    learning_rate: Annotated[float, ranges.ABOVE_0] = 3e-4
    """Step size of the optimiser at the start."""
    lr_schedule: Literal[
        "constant", "linear", "cosine", "warmup", "warmup_linear", "warmup_cosine"
    ] = "linear"
    """Shape of the learning rate over environment steps: constant, or linear or cosine to 0 at
    total_steps. The warmup shapes rise first. Unused if learning_rate is a schedule."""
    lr_warmup: Annotated[float, ranges.SHARE] = 0.05
    """Fraction of total_steps over which a warm-up rises from a tenth of the learning rate."""
    optimizer: Literal["adam", "rmsprop"] = "adam"
    """Adam, or RMSProp with decay 0.99 as IMPALA used it."""
    optimizer_eps: Annotated[float, ranges.ABOVE_0] = 1e-5
    """The epsilon in the optimiser's denominator."""
    max_grad_norm: Annotated[float, ranges.ABOVE_0_OR_INF] = 0.5
    """Global norm to which the mean gradient is clipped; inf switches clipping off."""
    kl_limit: Annotated[float | None, ranges.ABOVE_0] = None
    """Reduce the learning rate after updates whose mean KL(mu || pi) exceeds this, in nats, and
    restore it after updates below half of this; None: never."""
    reward_transform: Literal["none", "abs_one", "soft_asymmetric"] = "none"
    """Transform of rewards for training; reported returns are unchanged. abs_one: clip to [-1, 1];
    soft_asymmetric: 0.3 min(tanh r, 0) + 5 max(tanh r, 0) (IMPALA, Table D.1)."""
    reward_scale: Annotated[float, ranges.ABOVE_0] = 1.0
    """Factor on rewards for training; reported returns are not scaled."""
    normalize_returns: bool = False
    """Divide rewards by the running standard deviation of discounted returns, and clip to 10."""
    gamma: Annotated[float, ranges.FACTOR] = 0.99
    """Discount per environment step."""
    lam: Annotated[float, ranges.FACTOR] = 0.95
    """Lambda of GAE, or of V-trace (IMPALA, Remark 2: in the trace coefficients c only)."""
    normalize_advantage: bool | None = None
    """Scale advantages to mean 0 and standard deviation 1, by statistics of each minibatch, or by
    running statistics if a batch is used whole. None: same as the run's scale_free."""
    value_coef: Annotated[float, ranges.AT_LEAST_0] = 0.5
    """Weight of the value loss, which is half the squared error."""
    entropy_coef: Annotated[float, ranges.AT_LEAST_0] = 0.0
    """Weight of the entropy bonus at the start."""
    bounds_coef: Annotated[float, ranges.AT_LEAST_0] = 0.01
    """Weight of the penalty on means of continuous actions beyond 1.1 times the bounds, because
    clipped actions alone can't bring them back; 0: no penalty."""
    noise_color: Annotated[float, ranges.COLOR] = 0.5
    """Exponent of the noise spectrum 1 / f^noise_color of continuous actions in training: 0 is
    white noise (uncorrelated in time), 1 pink, 2 red. The distribution of each single action, and
    so its log-probability, stays the same. Noise between white and pink explores well on most
    tasks (Hollenstein et al. 2024). Unused with use_sde."""
    entropy_schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Shape of entropy_coef: constant, or linear or cosine to 0 at total_steps."""
    fused: bool = True
    """Compute gradients of built-in dense networks, minibatches and Adam steps in few large
    operations, which speeds up small steps; False: use autograd, as for other networks."""

    if not TYPE_CHECKING:  # custom algorithms have an __init__ that Python generates

        def __new__(cls, *args, **values):
            check_arguments(cls, args, values)
            return super().__new__(cls)

    def __post_init__(self) -> None:
        schedules.adopt(self)
        check_fields(self)
        self._check_schedules()
        valid = "'none' with normalize_returns, which clips rewards itself"
        plain = self.reward_transform == "none" or not self.normalize_returns
        require(plain, "reward_transform", self.reward_transform, valid)

    def _check_schedules(self) -> None:
        """Raise ConfigError if a schedule contradicts another setting."""
        scheduled = schedules.of(self)
        for name in self.FIXED:
            value = getattr(self, name, None)
            valid = "a number: it is used at the start, so it can't be a schedule"
            require(name not in scheduled, name, str(value), valid)
        valid = "a number with normalize_returns, whose statistics depend on it"
        both = "gamma" in scheduled and self.normalize_returns
        require(not both, "gamma", str(self.gamma), valid)
        for name, named in (("learning_rate", "lr_schedule"), ("entropy_coef", "entropy_schedule")):
            kind, default = getattr(self, named), type(self).__dataclass_fields__[named].default
            valid = f"left out if {name} is a schedule itself"
            alone = name not in scheduled or kind in ("constant", default)
            require(alone, named, kind, valid)

    @property
    def max_lag(self) -> int:
        """Number of updates by which a rollout may lag; 0 means synchronous training."""
        return 0

    @property
    def learns_in_actors(self) -> bool:
        """Return True if each actor applies its own gradients (``learner/hogwild.py``)."""
        return False

    @property
    def only(self) -> dict[str, tuple[Any, str]]:
        """Return settings that allow only one value with this algorithm, and the reason."""
        if self.max_lag > 0:
            return {}
        return {"weight_sync": ("every", "which acts with the newest weights only")}

    @property
    def steps_per_batch(self) -> int:
        """Number of optimiser steps on each batch."""
        return getattr(self, "epochs", 1) * getattr(self, "minibatches", 1)

    def max_updates(self, num_batches: int) -> int:
        """Return the largest number of updates for which ``num_batches`` batches last."""
        return num_batches

    def reuse_updates(self, num_columns: int) -> int:
        """Return the largest number of updates from the first to the last use of a batch."""
        return 0

    def columns_held(self, num_columns: int) -> int:
        """Return the largest number of columns in a learner's memory, for batches of this size."""
        return num_columns

    def per_learner(self, num_learners: int) -> Hyperparameters:
        """Return the settings of one of several learners, with its share of replay memory.

        Raises:
            ConfigError: the memory can't be divided.
        """
        return self

    def init(self, policy: ActorCritic) -> State:
        """Create mutable state for checkpoints: target network, buffers, adaptive coefficients."""
        return running_advantage(self.normalize_advantage)

    def batches(
        self, policy: ActorCritic, fresh: Fresh, state: State, group: Group
    ) -> Iterable[Batch]:
        """Yield the batches of one update, one optimiser step each; ``fresh()`` returns new data.

        Shuffled :class:`~headrace.algos.minibatches.Minibatches` may be returned instead. Several
        learners yield the same number of batches, each its part of the whole. ``group`` sums
        statistics of the whole batch. The default yields one batch once.
        """
        yield fresh()

    def terms(self, outputs: PolicyOutputs, batch: Batch, state: State) -> LossTerms:
        """Return the terms of the built-in loss; see :meth:`has_whole_loss`."""
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    @property
    def has_fixed_terms(self) -> bool:
        """Return True if the terms of minibatches do not depend on the trained policy.

        :meth:`terms` then ignores the outputs, and :meth:`after_step` never stops an update, so
        that all steps can be taken in one call. Subclasses that override how they
        train are excluded.
        """
        return False

    def loss(self, policy: ActorCritic, batch: Batch, state: State) -> Loss:
        """Return the loss and its metrics as SUMS over valid steps; the learner divides them.

        A large batch arrives in parts of its columns. Statistics of all of them, such as the mean
        advantage, belong in :meth:`batches`.
        """
        outputs = policy_outputs(policy, batch)
        return loss_of(self, self.terms(outputs, batch, state), outputs, batch)

    def has_whole_loss(self, state: State) -> bool:
        """Return True if :meth:`terms` give the whole loss; False: autograd uses :meth:`loss`."""
        return type(self).loss is Hyperparameters.loss

    def after_step(self, policy: ActorCritic, state: State, metrics: dict[str, float]) -> bool:
        """Process the mean metrics of an optimiser step; return True to stop the update early."""
        note_advantage(state, metrics)
        return False


def check_clipping(rho_bar: float, c_bar: float) -> None:
    """Check V-trace's thresholds: theorem 1 of IMPALA assumes rho_bar >= c_bar."""
    low, high = schedules.lowest(rho_bar), schedules.highest(c_bar)
    require(low >= high, "rho_bar", low, f"at least c_bar={high} (nearest: {high})")


class PolicyOutputs(NamedTuple):
    """Outputs of a policy for a batch, see :func:`policy_outputs`."""

    log_prob: Tensor  # [T, B]  log pi(action)
    entropy: Tensor  # [T, B]
    value: Tensor  # [T(+1), B]
    params: Tensor  # [T, B, P]  of the action distribution
    popart: Any  # units of the values, see :func:`units_of`
    bounds: ActionBounds | None = None  # of Gaussian means among the parameters


def policy_outputs(policy: ActorCritic, batch: Batch) -> PolicyOutputs:
    """Evaluate a policy on a batch, including the bootstrap row if there is one."""
    params, value, _ = policy(batch.obs, batch.first, batch.core)
    params, of = params[: len(batch.valid)], policy.distribution
    log_prob, entropy = of.log_prob(params, batch.action), of.entropy(params)
    units, bounds = units_of(policy, batch), policy.action_bounds
    return PolicyOutputs(log_prob, entropy, value, params, units, bounds)


def units_of(policy: ActorCritic, batch: Batch) -> Any:
    """Return the units of a policy's values for a batch; None: units of the rewards."""
    return None if policy.popart is None else policy.popart.of(batch.obs, len(batch.valid))


def by_task(units: Any, advantage: Tensor) -> Tensor:
    """Convert advantages ``[T, B]`` to the units of each task's values, if there are such."""
    return advantage if units is None else cast(Tensor, units.advantage(advantage))


def loss_of(hyper: Hyperparameters, terms: LossTerms, outputs: PolicyOutputs, batch: Batch) -> Loss:
    """Return the loss that the terms select, for autograd.

    ``ops.loss_derivatives`` computes the derivatives of the same loss without autograd.
    """
    value_loss = None
    of = terms, outputs.log_prob, batch.log_prob, batch.valid
    policy_loss, sums = losses.policy_loss(*of)
    if terms.value_clip is not None and terms.old_value is not None:
        values = outputs.value[: len(batch.valid)], terms.old_value, terms.target
        value, old, target = (in_own_units(outputs, x) for x in values)
        value_loss = losses.clipped_value_loss(value, old, target, batch.valid, terms.value_clip)
    loss, metrics = total_loss(
        hyper, batch, outputs, policy_loss, terms.target, value_loss=value_loss
    )
    if terms.kl_coef > 0:
        log_ratio = outputs.log_prob - batch.log_prob
        loss = loss + terms.kl_coef * losses.approx_kl(log_ratio, batch.valid)
    return loss, metrics | {**terms.sums, **sums}


def total_loss(
    hyper: Hyperparameters,
    batch: Batch,
    outputs: PolicyOutputs,
    policy_loss: Tensor,
    target: Tensor,
    *,
    value_loss: Tensor | None = None,
) -> Loss:
    """``policy + value_coef * value - entropy_coef * entropy`` and the metrics, all sums.

    The loss includes the penalty on means beyond their bounds.

    Args:
        policy_loss: 0-d sum.
        target: value targets ``[T, B]``.
        value_loss: 0-d sum; None: half the squared error, in the units of the value head.
    """
    value = outputs.value[: len(batch.valid)]
    if value_loss is None:
        own = in_own_units(outputs, value), in_own_units(outputs, target)
        value_loss = losses.value_loss(*own, batch.valid)
    entropy_sum = losses.masked_sum(outputs.entropy, batch.valid)
    loss = policy_loss + hyper.value_coef * value_loss
    if hyper.entropy_coef > 0:
        loss = loss - hyper.entropy_coef * entropy_sum
    if hyper.bounds_coef > 0 and outputs.bounds is not None:
        beyond = bounds_loss(outputs.params, outputs.bounds, batch.valid)
        loss = loss + hyper.bounds_coef * beyond
    with torch.no_grad():
        metrics: Metrics = {
            "policy_loss": policy_loss.detach(),
            "value_loss": value_loss.detach(),
            "entropy": entropy_sum.detach(),
            "approx_kl": losses.approx_kl(outputs.log_prob - batch.log_prob, batch.valid),
            **losses.value_moments(value, target, batch.valid),
        }
        if outputs.popart is not None:
            metrics |= outputs.popart.sums(target, batch.valid)
    return loss, metrics


def in_own_units(outputs: PolicyOutputs, value: Tensor) -> Tensor:
    """Convert values or targets to the units of the value head."""
    return value if outputs.popart is None else outputs.popart.normalized(value)

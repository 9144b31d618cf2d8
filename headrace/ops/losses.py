"""Losses with their derivatives, and statistics, as SUMS over valid steps.

Each loss is defined once, by its value and its derivative for every step (:class:`StepLoss`). The
functions ``..._loss`` sum the values and pass the derivative to autograd;
:func:`~headrace.ops.loss_derivatives.derivatives` uses the same definitions without autograd.
``native/losses.inc`` repeats the formulas for small dense networks; a change here needs the same
change there (``tests/native`` compares them). Only the learner divides the sums.

Inputs are ``[T, B]``, including ``valid`` (bool). A loss is a 0-d sum that can be differentiated
once. Fillers contribute 0 to values and gradients, even if they hold NaN. Advantages, targets, old
values and the log-probabilities of other policies are data without gradients. ``log_prob`` belongs
to the policy being trained, values exclude the bootstrap row, and ``log_ratio`` is log pi - log mu.

The public losses raise ValueError unless the shapes agree and are of rank 2, and TypeError unless
``valid`` is bool and the others are floating.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from headrace.ops.ratio import exp_ratio

_Number = TypeVar("_Number", Tensor, float)


class LossTerms(NamedTuple):
    """The data and thresholds of a loss; tensors are ``[T, B]`` and get no gradient."""

    advantage: Tensor
    target: Tensor  # value targets
    clip: float | None = None  # clip of the ratio pi/old (ppo_clip_loss); None: -A log pi
    max_ratio: float = math.inf  # truncation of the ratio, with clip
    old_log_prob: Tensor | None = None  # denominator of the clipped ratio; None: behaviour policy
    epsilon: float = 0.0  # above 0: -A log(pi + epsilon)
    old_value: Tensor | None = None  # with value_clip: clipped_value_loss
    value_clip: float | None = None  # in the units of the value head; unused without old_value
    kl_coef: float = 0.0  # weight of the penalty KL(behaviour || pi)
    weight: Tensor | None = None  # importance weights of the policy loss
    sums: Mapping[str, Tensor] = MappingProxyType({})  # further metrics

    @property
    def weighted_advantage(self) -> Tensor:
        """Return the factor of the policy loss, ``[T, B]``."""
        return self.advantage if self.weight is None else self.weight * self.advantage

    @property
    def clips_values(self) -> bool:
        """Return True if the value loss is :func:`clipped_value_loss`."""
        return self.value_clip is not None and self.old_value is not None


class StepLoss(NamedTuple):
    """The loss of each step and its derivative, ``[T, B]`` each; undefined on fillers."""

    value: Tensor
    slope: Tensor


class _Sum(torch.autograd.Function):
    """Sums the values of valid steps; the slopes are the gradient with respect to x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Tensor, slope: Tensor, valid: Tensor) -> Tensor:
        ctx.save_for_backward(torch.where(valid, slope, 0.0))
        return torch.where(valid, value, 0.0).sum()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (slope,) = ctx.saved_tensors
        return grad * slope, None, None, None


def summed(x: Tensor, steps: StepLoss, valid: Tensor) -> Tensor:
    """Return the sum over valid steps, differentiable with respect to ``x``."""
    return cast(Tensor, _Sum.apply(x, *steps, valid))


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Return the sum of ``x`` over valid steps."""
    _check(valid, x=x)
    return torch.where(valid, x, 0.0).sum()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """``-sum log pi(a_t | x_t) * A_t``, the policy term of IMPALA's section 4.2 and of A2C.

    Off-policy advantages already include the weight rho.
    """
    _check(valid, log_prob=log_prob, advantage=advantage)
    with torch.no_grad():
        steps = _policy_gradient(log_prob, advantage)
    return summed(log_prob, steps, valid)


def _policy_gradient(log_prob: Tensor, advantage: Tensor) -> StepLoss:
    return StepLoss(-log_prob * advantage, -advantage)


def epsilon_policy_gradient_loss(
    log_prob: Tensor, advantage: Tensor, valid: Tensor, epsilon: float
) -> Tensor:
    """``-sum log(pi(a_t | x_t) + epsilon) * A_t``: IMPALA's section 5.2.2, epsilon-correction.

    ``epsilon`` is above 0, the paper's is 1e-6; a ``log_prob`` of -inf is allowed.
    """
    _check(valid, log_prob=log_prob, advantage=advantage)
    with torch.no_grad():
        steps = _epsilon_policy_gradient(log_prob, advantage, epsilon)
    return summed(log_prob, steps, valid)


def _epsilon_policy_gradient(log_prob: Tensor, advantage: Tensor, epsilon: float) -> StepLoss:
    corrected = torch.logaddexp(log_prob, log_prob.new_tensor(math.log(epsilon)))
    share = (log_prob - corrected).exp()
    return StepLoss(-corrected * advantage, share * -advantage)


def ppo_clip_loss(
    log_ratio: Tensor,
    advantage: Tensor,
    valid: Tensor,
    clip: float,
    max_ratio: float = math.inf,
) -> tuple[Tensor, Tensor]:
    """``-sum min(r_t A_t, clamp(r_t, 1 - clip, 1 + clip) A_t)`` (Schulman et al. 2017, equation 7).

    ``r_t = exp(log_ratio_t)`` (:func:`~headrace.ops.ratio.exp_ratio`), and ``clip`` is the paper's
    epsilon. Where the first term is the minimum, ``min(max_ratio, r_t)`` replaces ``r_t`` in the
    loss and in its gradient with respect to ``log pi``, as in IMPALA's policy gradient (Espeholt et
    al. 2018, section 4.2). An infinite ``clip`` gives exactly that gradient.

    Returns:
        the loss, and the number of valid steps with ``|r_t - 1| > clip`` as a 0-d float.
    """
    _check(valid, log_ratio=log_ratio, advantage=advantage)
    with torch.no_grad():
        steps, clipped = _ppo_clip(log_ratio, advantage, clip, max_ratio)
        count = masked_sum(clipped, valid)
    return summed(log_ratio, steps, valid), count


def _ppo_clip(
    log_ratio: Tensor, advantage: Tensor, clip: float, max_ratio: float
) -> tuple[StepLoss, Tensor]:
    """Return the loss, and 1 where the ratio is clipped, else 0."""
    ratio = exp_ratio(log_ratio)
    bounded = ratio.clamp(1.0 - clip, 1.0 + clip)
    plain, limited = -ratio * advantage, -bounded * advantage
    free, truncated = plain >= limited, -ratio.clamp(max=max_ratio) * advantage
    steps = StepLoss(torch.where(free, truncated, limited), torch.where(free, truncated, 0.0))
    return steps, (ratio != bounded).to(ratio.dtype)


def policy_loss(
    terms: LossTerms, log_prob: Tensor, behaviour_log_prob: Tensor, valid: Tensor
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the policy loss that the terms select, and sums of further metrics."""
    _check(valid, log_prob=log_prob, advantage=terms.advantage)
    with torch.no_grad():
        log_ratio = log_prob - behaviour_log_prob
        steps, metrics = policy_steps(terms, log_prob, log_ratio)
        sums = {name: masked_sum(row, valid) for name, row in metrics.items()}
    return summed(log_prob, steps, valid), sums


def policy_steps(
    terms: LossTerms, log_prob: Tensor, log_ratio: Tensor
) -> tuple[StepLoss, dict[str, Tensor]]:
    """Return the policy loss with its derivative by log pi, and further metrics."""
    advantage = terms.weighted_advantage
    if terms.clip is not None:
        if terms.old_log_prob is not None:
            log_ratio = log_prob - terms.old_log_prob
        steps, clipped = _ppo_clip(log_ratio, advantage, terms.clip, terms.max_ratio)
        return steps, {"clipfrac": clipped}
    if terms.epsilon > 0:
        return _epsilon_policy_gradient(log_prob, advantage, terms.epsilon), {}
    return _policy_gradient(log_prob, advantage), {}


def value_loss(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """``sum 1/2 (V(x_t) - target_t)^2``, the l2 loss of IMPALA's section 4.2."""
    _check(valid, value=value, target=target)
    with torch.no_grad():
        error = target - value
        steps = StepLoss(half_square(error.square()), half_square_slope(error))
    return summed(value, steps, valid)


def half_square(square: _Number) -> _Number:
    """Return the value loss of squared errors, or of their sum."""
    return 0.5 * square


def half_square_slope(error: Tensor, weight: float = 1.0) -> Tensor:
    """``weight`` times the derivative of :func:`half_square` with respect to V.

    Args:
        error: ``target - V``.
    """
    return error * -weight


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, valid: Tensor, clip: float
) -> Tensor:
    """Return the larger of ``value_loss`` and the same with V clipped around its old value.

    The maximum is taken per step, as in the PPO authors' implementation; the paper has no clipping.

    Args:
        old_value: V when the targets were computed.
        clip: largest unclipped change, in the value's units.
    """
    _check(valid, value=value, old_value=old_value, target=target)
    with torch.no_grad():
        steps = clipped_value_steps(target - value, value - old_value, target - old_value, clip)
    return summed(value, steps, valid)


def clipped_value_steps(error: Tensor, move: Tensor, full_move: Tensor, clip: float) -> StepLoss:
    """Return the clipped loss from ``target - V``, ``V - V_old`` and ``target - V_old``."""
    moved_error = full_move - move.clamp(-clip, clip)
    free = (error.abs() >= moved_error.abs()) | (move.abs() <= clip)
    value = half_square(torch.maximum(error.square(), moved_error.square()))
    return StepLoss(value, torch.where(free, half_square_slope(error), 0.0))


def approx_kl(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """Return ``sum (r_t - 1) - log r_t`` with ``r = pi / mu``; each term is at least 0.

    For actions sampled from mu its expectation is KL(mu || pi), because E[r] = 1.
    """
    _check(valid, log_ratio=log_ratio)
    with torch.no_grad():
        steps = approx_kl_steps(log_ratio)
    return summed(log_ratio, steps, valid)


def approx_kl_steps(log_ratio: Tensor) -> StepLoss:
    """Return each step's term of :func:`approx_kl`, and its derivative."""
    excess = log_ratio.expm1()
    return StepLoss(excess - log_ratio, excess)


@torch.no_grad()
def value_moments(value: Tensor, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Compute the sums for ``explained_variance``; add them up over chunks first.

    Returns:
        ``target_sum``, ``target_sq``, ``error_sum`` and ``error_sq`` (error is target - value),
        0-d float64, because float32 sums lose the variance far from mean 0.
    """
    _check(valid, value=value, target=target)
    target_t = torch.where(valid, target, 0.0).double()
    error_t = torch.where(valid, target - value, 0.0).double()
    return {
        "target_sum": target_t.sum(),
        "target_sq": target_t.square().sum(),
        "error_sum": error_t.sum(),
        "error_sq": error_t.square().sum(),
    }


def explained_variance(
    target_sum: float, target_sq: float, error_sum: float, error_sq: float, count: float
) -> float | None:
    """``1 - Var[target - value] / Var[target]``: 1 is a perfect fit, 0 no better than a constant.

    Args:
        target_sum, target_sq, error_sum, error_sq: totals of ``value_moments``.
        count: number of valid steps.

    Returns:
        None if it is undefined: fewer than 2 steps, or constant targets.
    """
    if count < 2:
        return None
    target_var = float(target_sq) / count - (float(target_sum) / count) ** 2
    if target_var <= 1e-12 * float(target_sq) / count:  # 0 up to rounding
        return None
    return 1.0 - (float(error_sq) / count - (float(error_sum) / count) ** 2) / target_var


def _check(valid: Tensor, **tensors: Tensor) -> None:
    """Check rank, shapes and dtypes; raises ValueError or TypeError."""
    if valid.dtype != torch.bool:
        raise TypeError(f"valid must be bool, got {valid.dtype}")
    if valid.dim() != 2:
        raise ValueError(f"valid must be [T, B], got {tuple(valid.shape)}")
    for name, x in tensors.items():
        if x.shape != valid.shape:
            raise ValueError(
                f"{name} must be {tuple(valid.shape)} like valid, got {tuple(x.shape)}"
            )
        if not x.is_floating_point():
            raise TypeError(f"{name} must be floating, got {x.dtype}")

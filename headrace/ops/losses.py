"""Losses and statistics as SUMS over valid steps; only the learner divides.

Inputs are ``[T, B]``, ``valid`` bool among them, and a loss is a 0-d sum. Each input is masked with
``torch.where`` before any arithmetic that could turn a filler's NaN or huge number into a NaN
gradient. Advantages, targets, old values and the log-probabilities of other policies are data: no
gradient flows into them. ``log_prob`` is that of the policy that learns, values are without their
bootstrap row, and ``log_ratio`` is log pi - log mu.

All functions raise ValueError unless the shapes agree and are of rank 2, and TypeError unless
``valid`` is bool and the others are floating.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from headrace.ops.ratio import exp_ratio


def masked_sum(x: Tensor, valid: Tensor) -> Tensor:
    """Sum of ``x`` where ``valid``."""
    _check(valid, x=x)
    return torch.where(valid, x, 0.0).sum()


def policy_gradient_loss(log_prob: Tensor, advantage: Tensor, valid: Tensor) -> Tensor:
    """``-sum log pi(a_t | x_t) * A_t``, the policy term of IMPALA's section 4.2 and of A2C.

    Off-policy advantages are weighted with rho already.
    """
    _check(valid, log_prob=log_prob, advantage=advantage)
    advantage_t = torch.where(valid, advantage.detach(), 0.0)
    return -(torch.where(valid, log_prob, 0.0) * advantage_t).sum()


def epsilon_policy_gradient_loss(
    log_prob: Tensor, advantage: Tensor, valid: Tensor, epsilon: float
) -> Tensor:
    """``-sum log(pi(a_t | x_t) + epsilon) * A_t``: IMPALA's section 5.2.2, epsilon-correction.

    ``epsilon`` is above 0, the paper's is 1e-6; a ``log_prob`` of -inf is allowed.
    """
    _check(valid, log_prob=log_prob, advantage=advantage)
    log_prob_t = torch.where(valid, log_prob, 0.0)
    corrected_t = torch.logaddexp(log_prob_t, log_prob_t.new_tensor(epsilon).log())
    return policy_gradient_loss(corrected_t, advantage, valid)


def surrogate_log_ratio(
    log_prob: Tensor, target_log_prob: Tensor, behaviour_log_prob: Tensor, kind: str, rho: float
) -> Tensor:
    """The log of one of IMPACT's likelihood ratios (Luo et al. 2020, section 4.1).

    ``R1 = pi / pi_target``, ``R2 = pi / mu`` and ``R3 = pi / max(pi_target, mu / rho)``, which is
    ``min(mu / pi_target, rho) * pi / mu`` (section 3.1).

    Args:
        log_prob, target_log_prob, behaviour_log_prob: log pi, log pi_target and log mu.
        kind: ``R1``, ``R2`` or ``R3``.
        rho: at least 1; the paper's beta is ``1 / rho``.

    Returns:
        ``[T, B]``, to be given to ``ppo_clip_loss``; anything on fillers.

    Raises:
        KeyError: there is no such ratio.
    """
    target_t, behaviour_t = target_log_prob.detach(), behaviour_log_prob.detach()
    denominator_t = {
        "R1": target_t,
        "R2": behaviour_t,
        "R3": torch.maximum(target_t, behaviour_t - math.log(rho)),
    }[kind]
    return log_prob - denominator_t


def ppo_clip_loss(
    log_ratio: Tensor, advantage: Tensor, valid: Tensor, clip: float
) -> tuple[Tensor, Tensor]:
    """``-sum min(r_t A_t, clamp(r_t, 1 - clip, 1 + clip) A_t)`` (Schulman et al. 2017, equation 7).

    ``r_t = exp(log_ratio_t)`` (:func:`~headrace.ops.ratio.exp_ratio`), and ``clip`` is the paper's
    epsilon.

    Returns:
        the loss, and how many valid steps had ``|r_t - 1| > clip`` as a 0-d float.
    """
    _check(valid, log_ratio=log_ratio, advantage=advantage)
    advantage_t = torch.where(valid, advantage.detach(), 0.0)
    ratio_t = exp_ratio(torch.where(valid, log_ratio, 0.0))
    clipped_t = ratio_t.clamp(1.0 - clip, 1.0 + clip)
    loss = -torch.minimum(ratio_t * advantage_t, clipped_t * advantage_t).sum()
    return loss, (ratio_t.detach() != clipped_t.detach()).sum(dtype=ratio_t.dtype)


def value_loss(value: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """``sum 1/2 (V(x_t) - target_t)^2``, the l2 loss of IMPALA's section 4.2."""
    _check(valid, value=value, target=target)
    return 0.5 * torch.where(valid, value - target.detach(), 0.0).square().sum()


def clipped_value_loss(
    value: Tensor, old_value: Tensor, target: Tensor, valid: Tensor, clip: float
) -> Tensor:
    """``value_loss`` or the same with V moved at most ``clip`` from its old value: the larger one.

    This is the per-step maximum that the PPO authors' implementation uses; the paper has none.

    Args:
        old_value: V when the targets were made.
        clip: the greatest change that counts in full, in the value's units.
    """
    _check(valid, value=value, old_value=old_value, target=target)
    old_t, target_t = old_value.detach(), target.detach()
    moved_t = old_t + (value - old_t).clamp(-clip, clip)
    error_t = torch.where(valid, value - target_t, 0.0)
    moved_error_t = torch.where(valid, moved_t - target_t, 0.0)
    return 0.5 * torch.maximum(error_t.square(), moved_error_t.square()).sum()


def approx_kl(log_ratio: Tensor, valid: Tensor) -> Tensor:
    """``sum (r_t - 1) - log r_t`` with ``r = pi / mu``: each term >= 0, differentiable.

    For actions drawn from mu its expectation is KL(mu || pi), since r has the expectation 1.
    """
    _check(valid, log_ratio=log_ratio)
    log_ratio_t = torch.where(valid, log_ratio, 0.0)
    return (log_ratio_t.expm1() - log_ratio_t).sum()


@torch.no_grad()
def value_moments(value: Tensor, target: Tensor, valid: Tensor) -> dict[str, Tensor]:
    """Sums from which ``explained_variance`` follows; add them up over chunks first.

    Returns:
        ``target_sum``, ``target_sq``, ``error_sum`` and ``error_sq`` (error is target - value),
        0-d float64: a variance from float32 sums would drown in rounding far from mean 0.
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
        count: the number of valid steps in them.

    Returns:
        None where it is undefined: fewer than 2 steps, or targets that do not vary.
    """
    if count < 2:
        return None
    target_var = float(target_sq) / count - (float(target_sum) / count) ** 2
    if target_var <= 1e-12 * float(target_sq) / count:  # what rounding leaves of 0
        return None
    return 1.0 - (float(error_sq) / count - (float(error_sum) / count) ** 2) / target_var


def _check(valid: Tensor, **tensors: Tensor) -> None:
    """Rank, shapes and dtypes; raises ValueError or TypeError."""
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

"""Probability ratios without overflow (float32 overflows at exp(89)), and IMPACT's ratios."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """Compute ``exp(log_ratio)``, clipped to the largest finite number, so a ratio times 0 is 0.

    No gradient flows through clipped elements; NaN stays NaN.
    """
    return log_ratio.clamp(max=_largest(log_ratio.dtype)).exp()


def _largest(dtype: torch.dtype) -> float:
    """Return the largest log whose exponential is finite after any rounding."""
    return math.log(torch.finfo(dtype).max) * (1.0 - 1e-6)


def grows_out_of_range(x: Tensor, factors: Tensor) -> bool:
    """Return True if ``x`` times products of factors along time, ``[T, B]``, can overflow."""
    half = 0.5 * _largest(x.dtype)
    if torch.linalg.vector_norm(x, math.inf) > math.exp(half):
        return True
    if not factors.max() > 1.0:
        return False
    return bool(factors.clamp(min=1.0).log().sum(0).max() > half)


def surrogate_log_ratio(
    log_prob: Tensor, target_log_prob: Tensor, behaviour_log_prob: Tensor, kind: str, rho: float
) -> Tensor:
    """Compute the log of one of IMPACT's likelihood ratios (Luo et al. 2020, section 4.1).

    ``R1 = pi / pi_target``, ``R2 = pi / mu`` and ``R3 = pi / max(pi_target, mu / rho)``, which is
    ``min(mu / pi_target, rho) * pi / mu`` (section 3.1).

    Args:
        log_prob, target_log_prob, behaviour_log_prob: log pi, log pi_target and log mu.
        kind: ``R1``, ``R2`` or ``R3``.
        rho: at least 1; the paper's beta is ``1 / rho``.

    Returns:
        ``[T, B]``, for ``ppo_clip_loss``; undefined on fillers.

    Raises:
        KeyError: ``kind`` is unknown.
    """
    old = surrogate_log_prob(target_log_prob.detach(), behaviour_log_prob.detach(), kind, rho)
    return log_prob - old


def surrogate_log_prob(
    target_log_prob: Tensor, behaviour_log_prob: Tensor, kind: str, rho: float
) -> Tensor:
    """Return the log of the denominator of :func:`surrogate_log_ratio`."""
    return {
        "R1": target_log_prob,
        "R2": behaviour_log_prob,
        "R3": torch.maximum(target_log_prob, behaviour_log_prob - math.log(rho)),
    }[kind]

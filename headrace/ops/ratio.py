"""Probability ratios without overflow; float32 overflows at exp(89)."""

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

"""Ratios of probabilities, which float32 can't hold from exp(89) on."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """``exp(log_ratio)``, at most about the dtype's largest number, so that a ratio times 0 is 0.

    Where it is at its bound, no gradient flows; a NaN stays one.
    """
    return log_ratio.clamp(max=_largest(log_ratio.dtype)).exp()


def _largest(dtype: torch.dtype) -> float:
    """A log whose exponential is finite, however the log is rounded."""
    return math.log(torch.finfo(dtype).max) * (1.0 - 1e-6)


def grows_out_of_range(x: Tensor, factors: Tensor) -> bool:
    """Whether ``x`` times products of factors down a column, ``[T, B]``, can overflow."""
    half = 0.5 * _largest(x.dtype)
    if torch.linalg.vector_norm(x, math.inf) > math.exp(half):
        return True
    if not factors.max() > 1.0:
        return False
    return bool(factors.clamp(min=1.0).log().sum(0).max() > half)

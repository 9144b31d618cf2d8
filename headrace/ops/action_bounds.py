"""Penalty on Gaussian means beyond the bounds of continuous actions, as a sum over valid steps."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from headrace.ops.losses import StepLoss, summed

_ROOM = 1.1  # distance of a mean from the middle without a penalty, in half-ranges


class ActionBounds(NamedTuple):
    """The Gaussian means among a policy's outputs whose actions are bounded, and their range."""

    places: Tensor  # [k] int64, positions among the outputs
    middle: Tensor  # [k]  of the range
    half: Tensor  # [k]  half the range


def bounds_loss(params: Tensor, bounds: ActionBounds, valid: Tensor) -> Tensor:
    """Penalise means beyond their bounds, summed over valid steps.

    The penalty is ``max(0, |m| - 1.1)^2`` with ``m = (mean - middle) / half``. Actions are clipped
    to the bounds, so returns don't depend on how far the mean is beyond one. Without the penalty,
    it can drift until all sampled actions are clipped.

    Args:
        params: ``[T, B, P]``, of which ``bounds`` selects means.
    """
    means = params[..., bounds.places]
    with torch.no_grad():
        steps = _beyond_bounds(means, bounds)
    return summed(means, steps, valid.unsqueeze(-1))


def _beyond_bounds(means: Tensor, bounds: ActionBounds) -> StepLoss:
    """Return the loss of means ``[..., k]``, and its derivative."""
    scaled = (means - bounds.middle) / bounds.half
    excess = (scaled.abs() - _ROOM).clamp(min=0.0)
    return StepLoss(excess.square(), 2.0 * excess * scaled.sign() / bounds.half)


def bounds_slope(outputs: Tensor, bounds: ActionBounds) -> Tensor:
    """Return the derivative of :func:`bounds_loss` with respect to bounded means ``[N, k]``."""
    return _beyond_bounds(outputs[:, bounds.places], bounds).slope

"""State-dependent exploration (gSDE, Raffin et al. 2021, https://arxiv.org/abs/2005.05719).

The noise of ``k`` actions is ``z s``, with features ``z`` ``[F]`` of the policy's last layer and a
matrix ``s`` ``[F, k]`` of normal numbers with standard deviations ``sigma``. While ``s`` stays the
same, noise is a fixed function of the state. Over random ``s``, actions are Gaussian with variance
``z^2 sigma^2`` (equation 7), from which log-probabilities and entropies are computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from headrace.types import Tree

_EPSILON = 1e-6  # keeps the variance above 0


class Explorer(NamedTuple):
    """Function that acts with state-dependent noise, and a description of its matrices."""

    act: Callable[[Tree, Tensor, Tree, Tensor, Tensor], tuple[Tensor, Tree]]
    """See :meth:`Policy.explore`."""
    shape: tuple[int, int]
    """``(F, k)`` of the matrices."""
    sample_freq: int | None
    """Steps after which they are drawn again; None: once per rollout."""


def log_std_of(features: Tensor, log_sigma: Tensor) -> Tensor:
    """Return the log standard deviation ``[..., k]`` of actions.

    Args:
        features: ``[..., F]``, through which no gradient flows.
        log_sigma: ``[F, k]``.
    """
    variance = features.detach().square() @ (2.0 * log_sigma).exp()
    return 0.5 * torch.log(variance + _EPSILON)


def noise_of(features: Tensor, log_sigma: Tensor, directions: Tensor) -> Tensor:
    """Return noise ``[B, k]`` in standard deviations of the action.

    Args:
        features: ``[B, F]``; log_sigma: ``[F, k]``.
        directions: ``[B, F, k]`` normal numbers, one matrix for each environment.
    """
    noise = torch.einsum("bf,bfk->bk", features, log_sigma.exp() * directions)
    return noise / log_std_of(features, log_sigma).exp()

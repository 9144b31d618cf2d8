"""Transforms of rewards for training."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.errors import require_choice

TRANSFORMS = ("none", "abs_one", "soft_asymmetric")


def transformed(reward: Tensor, transform: str) -> Tensor:
    """Clip or squash rewards of any shape, element by element.

    Args:
        transform: ``none``; ``abs_one``, clipped to [-1, 1] (Mnih et al. 2015; IMPALA, Table G.1);
            ``soft_asymmetric``, ``0.3 min(tanh r, 0) + 5 max(tanh r, 0)``, which compresses large
            rewards and weights losses less (IMPALA, Table D.1).
    """
    require_choice("transform", transform, TRANSFORMS)
    if transform == "abs_one":
        return reward.clamp(-1.0, 1.0)
    if transform == "soft_asymmetric":
        squashed = torch.tanh(reward)
        return 0.3 * squashed.clamp(max=0.0) + 5.0 * squashed.clamp(min=0.0)
    return reward

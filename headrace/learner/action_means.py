"""Measures how far the means of continuous actions are from the middle of their bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.types import Tree


@torch.no_grad()
def mean_size(policy: Policy, obs: Tree, first: Tensor, core: Tree) -> float | None:
    """Return the mean of ``|mean - middle| / half``; 1.0 is at the bounds.

    Only the first row is evaluated, which costs little compared with an update.

    Args:
        obs: ``[T, B, ...]`` inputs of the policy; first: ``[T, B]`` bool; core: ``[B, ...]``.

    Returns:
        The mean over samples and actions. None without bounded Gaussians, and for images, whose
        forward pass is expensive.
    """
    bounds = policy.action_bounds
    if bounds is None or not policy.torso.is_vector:
        return None
    row = tree.map_leaves(lambda x: x[0], obs)
    params, _ = policy.act(row, first[0], core)
    return float(((params[:, bounds.places] - bounds.middle) / bounds.half).abs().mean())

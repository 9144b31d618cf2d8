"""Measures how far the means of continuous actions are from the middle of their bounds."""

from __future__ import annotations

import torch
from torch import Tensor

from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.types import Tree


@torch.no_grad()
def mean_size(policy: Policy, obs: Tree, first: Tensor, core: Tree) -> float | None:
    """Return the average of ``|mean - middle| / half``, so 1.0 is at the bounds.

    Only the first row is evaluated, at a small part of an update's cost.

    Args:
        obs: ``[T, B, ...]`` inputs of the policy; first: ``[T, B]`` bool; core: ``[B, ...]``.

    Returns:
        None without bounded Gaussians, and for images, whose forward pass is expensive.
    """
    bounds = policy.action_bounds
    if bounds is None or not policy.torso.is_vector:
        return None
    row = tree.map_leaves(lambda x: x[0], obs)
    params, _ = policy.act(row, first[0], core)
    return float(((params[:, bounds.places] - bounds.middle) / bounds.half).abs().mean())

"""Maps tensors between the spaces of one task or agent and the unified ones, for ONNX files.

``headrace/spaces/unified_spaces.py`` has the same mappings for NumPy.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from torch import Tensor

from headrace.nn.inputs import Inputs
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.spaces.unified_spaces import OBSERVATION, TASK
from headrace.types import Tree


def own_inputs(policy: Any) -> Inputs:
    """Return the inputs of a policy in the spaces that :meth:`Policy.predict` takes."""
    if policy.place is None:
        return policy.inputs  # type: ignore[no-any-return]
    return replace(policy.inputs, observation_space=policy.observation_space, hides_task=None)


def mask_size(policy: Any) -> int:
    """Return the number of entries of an action mask in these spaces."""
    own, whole = policy.action_space, policy.inputs.action_space
    if policy.place is not None and isinstance(own, Discrete) and isinstance(whole, Discrete):
        return min(int(own.n), int(whole.n))
    return int(policy.distribution.num_mask)


def unified(policy: Any, parts: dict[str, Tree]) -> dict[str, Tree]:
    """Map observation and action mask into the unified spaces, and add the task's number."""
    if policy.place is None:
        return parts
    obs, at, parts = parts["obs"], policy.place, dict(parts)
    if policy.task is not None:
        if not isinstance(policy.observation_space, Dict):
            obs, at = {OBSERVATION: obs}, {OBSERVATION: at}
        task = torch.full((tree.leaves(obs)[0].shape[0],), policy.task)
        obs, at = {**obs, TASK: task}, {**at, TASK: 0}
        if policy.inputs.hides_task is not None:
            parts[TASK] = task
    if MASK in parts:
        parts[MASK] = _longer(parts[MASK], policy.distribution.num_mask)
    return {**parts, "obs": _fitted(obs, policy.inputs.features_space, at)}


def own_action(policy: Any, action: Tree) -> Tree:
    """Map an action of the unified space to the environment's own."""
    own = policy.action_space
    if policy.place is None or own == policy.inputs.action_space:
        return action
    dtype = getattr(torch, np.dtype(own.dtype).name)
    if isinstance(own, Discrete):
        return (action.clamp(max=int(own.n) - 1) + int(own.start)).to(dtype)
    low, high = torch.as_tensor(own.low), torch.as_tensor(own.high)
    share = (action[..., : own.shape[0]].clamp(-1.0, 1.0) + 1.0) / 2.0
    scaled = low * (1.0 - share) + high * share
    return torch.minimum(torch.maximum(scaled, low), high).to(dtype)


def _fitted(x: Tree, space: Any, at: Any) -> Tree:
    """Map an observation ``[B, ...]`` into ``space``; ``at``: its place there."""
    if isinstance(space, Dict):
        return {key: _fitted(x[key], part, at[key] if at else 0) for key, part in space.items()}
    if isinstance(space, Tuple):
        each = zip(x, space, at or [0] * len(space), strict=True)
        return tuple(_fitted(*one) for one in each)
    if isinstance(space, Discrete):
        return x.long() + at
    if not isinstance(space, Box):
        return x
    x = x.to(getattr(torch, np.dtype(space.dtype).name))
    return x if x.shape[1:] == space.shape else _longer(x, space.shape[0], at)


def _longer(x: Tensor, size: int, at: int = 0) -> Tensor:
    """Pad rows ``[B, n]`` with zeros to ``[B, size]``, ``at`` of them in front."""
    before, after = x.new_zeros(x.shape[0], at), x.new_zeros(x.shape[0], size - at - x.shape[1])
    return torch.cat([before, x, after], 1)

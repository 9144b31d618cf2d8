"""Computes actions for a user's observations, single or in batches."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Discrete
from torch import Tensor

from headrace.errors import ConfigError
from headrace.ops import tree
from headrace.spaces import observations as spaces
from headrace.spaces.masks import MASK
from headrace.spaces.unified_spaces import masked, own_action, shown
from headrace.spaces.walk import map_space
from headrace.types import Tree


def predict(
    policy: Any,
    obs: Any,
    state: Tree | None,
    episode_start: Any,
    deterministic: bool,
    action_mask: Any,
    reward: Any,
) -> tuple[Any, Tree]:
    """Implement :meth:`Policy.predict` for any policy with ``inputs`` and ``device``."""
    obs, single = spaces.checked(policy.observation_space, obs)
    if single:
        action_mask, reward = (
            tree.map_leaves(lambda x: None if x is None else np.asarray(x)[None], x)
            for x in (action_mask, reward)
        )
    if action_mask is None and policy.inputs.mask == "info":
        _warn_of_no_mask(policy)
    count = len(tree.leaves(obs)[0])
    own, whole = policy.action_space, policy.inputs.action_space
    if policy.place is not None:  # an agent's or a task's, of several whose spaces are joined
        task = None if policy.task is None else np.full(count, policy.task)
        observed = policy.observation_space, policy.inputs.observation_space
        obs = shown(obs, *observed, task, policy.place, axes=1)
        mask = {} if action_mask is None else {MASK: action_mask}
        action_mask = masked(mask, own, whole, batch=(count,)).get(MASK)
    start = state is None if episode_start is None else episode_start
    first = np.broadcast_to(np.asarray(start), count).copy()
    inputs, core = inputs_of(policy, obs, state, first, action_mask, reward)
    params, core = policy.act(inputs, torch.as_tensor(first, device=policy.device), core)
    if deterministic:
        action = policy.distribution.mode(params)
    else:
        noise = policy.distribution.noise((count,), None).to(policy.device)
        action = policy.distribution.sample(params, noise)
    action = tree.map_leaves(lambda x: x.cpu().numpy(), action)
    result = policy.env_action(action)
    if policy.place is not None:
        result = own_action(result, own, whole)
    if single:
        result = map_space(_only_row, own, result)
    state = {"core": core, "action": action} if policy.inputs.previous else core
    return result, state


def _warn_of_no_mask(policy: Any) -> None:
    """Warn once per policy, at the line that called predict, that no mask was given."""
    if vars(policy).get("_warned_of_no_mask"):
        return
    vars(policy)["_warned_of_no_mask"] = True
    warnings.warn(
        "predict() got no action_mask=, so it may return forbidden actions: the policy was trained "
        "with action masks. Pass action_mask=info['action_mask'] or action_mask=env.action_masks()",
        stacklevel=5,
    )


def _only_row(leaf: Any, action: np.ndarray) -> Any:
    """Take the action out of a batch of one: a NumPy integer for Discrete, else an array."""
    return action[0] if isinstance(leaf, Discrete) else action[0, ...]


def inputs_of(
    policy: Any, obs: Any, state: Tree | None, first: np.ndarray, mask: Any, reward: Any
) -> tuple[Tree, Tree]:
    """Return inputs and core as tensors on the policy's device."""
    core = policy.initial_core(len(first)) if state is None else state
    action = None
    if policy.inputs.previous and state is not None:
        core, action = state["core"], state["action"]
        if reward is None:
            raise ConfigError(
                "predict() needs reward=…, the previous step's, because the network was built "
                "with previous_action_reward=True"
            )
    inputs = policy.inputs.compose(obs, mask, action, reward, first)
    return tree.map_leaves(lambda x: _as_tensor(x, policy.device), inputs), core


def _as_tensor(x: Any, device: torch.device) -> Tensor:
    """Convert an array of any strides to a tensor; copies only if torch can't share its memory."""
    if isinstance(x, np.ndarray):
        x = np.require(x, requirements=["C", "W"])
    return torch.as_tensor(x, device=device)

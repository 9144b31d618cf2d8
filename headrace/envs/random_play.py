"""Plays vector environments with random actions that their masks allow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import concatenate, create_empty_array

from headrace.spaces.masks import MASK, sample_allowed


def random_play(envs: VectorEnv, seed: int) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Return functions that reset and step environments, with allowed random actions.

    Args:
        seed: seed of the actions.
    """
    envs.single_action_space.seed(seed)
    obs: Any = None
    infos: dict[str, Any] = {}

    def reset() -> Any:
        nonlocal obs, infos
        obs, infos = envs.reset()
        return obs

    def step() -> Any:
        nonlocal obs, infos
        obs, *_, infos = envs.step(allowed_action(envs, obs, infos))
        return obs

    return reset, step


def allowed_action(envs: VectorEnv, obs: Any, infos: dict[str, Any]) -> Any:
    """Draw random actions, ``[B, ...]``, that the mask allows."""
    space, num_envs = envs.single_action_space, envs.num_envs
    mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else infos.get(MASK)
    actions = [sample_allowed(space, mask_row(mask, i)) for i in range(num_envs)]
    empty: Any = create_empty_array(space, num_envs)
    return concatenate(space, actions, empty)


def mask_row(mask: Any, i: int) -> Any:
    """Select a row of a vector environment's infos; Gymnasium adds entries that begin with "_"."""
    if isinstance(mask, dict):
        return {k: mask_row(v, i) for k, v in mask.items() if not (k[:1] == "_" and k[1:] in mask)}
    if isinstance(mask, tuple):
        return tuple(mask_row(part, i) for part in mask)
    return None if mask is None else mask[i]

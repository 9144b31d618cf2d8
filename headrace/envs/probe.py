"""A first look at a run's environment, before anything is built or started for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium

from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.spaces.actions import MASK


@dataclass(frozen=True)
class Probe:
    """What an environment turned out to be."""

    env: Any  # resolved, see headrace.envs.names.resolve
    observation_space: gymnasium.Space
    action_space: gymnasium.Space
    info_mask: bool  # whether it shows an action mask in its infos


def probe(env: Any, engine: str, env_kwargs: dict[str, Any], seed: int) -> Probe:
    """Make the environment once and reset it.

    Args:
        env, engine, env_kwargs: see ``headrace.envs.make_vec``.

    Raises:
        ConfigError: there is none of this name, or it can't be made.
    """
    env = resolve(env)
    envs = make_vec(env, 1, "sync" if engine == "async" else engine, env_kwargs)
    try:
        _, infos = envs.reset(seed=seed)
        return Probe(env, envs.single_observation_space, envs.single_action_space, MASK in infos)
    finally:
        envs.close()

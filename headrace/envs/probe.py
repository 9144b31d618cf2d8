"""A first look at a run's environment, before anything is built or started for it."""

from __future__ import annotations

import contextlib
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
    """Make the environment once, as ``headrace.envs.make_vec`` does, and reset it.

    Raises:
        ConfigError: there is none of this name, or it can't be made.
    """
    env = resolve(env)
    engine = "sync" if engine == "async" else engine
    with contextlib.closing(make_vec(env, 1, engine, env_kwargs)) as envs:
        _, infos = envs.reset(seed=seed)
        return Probe(env, envs.single_observation_space, envs.single_action_space, MASK in infos)

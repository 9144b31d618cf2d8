"""Infos of several environments, of whatever kinds and shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

_MISFITS = (AttributeError, IndexError, OverflowError, TypeError, ValueError)


def take_any_infos(envs: VectorEnv) -> VectorEnv:
    """``envs`` itself, with infos that needn't fit one array.

    Gymnasium takes an entry's dtype and shape from the first environment that gives it, and raises
    where another one differs: a path that grows, or None in place of a number. Here such an entry
    is an array of objects; all others are as they were.
    """
    add = envs._add_info

    def add_any(
        vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        if not env_info:  # as of most steps of most environments
            return vector_infos
        try:
            return add(vector_infos, env_info, env_num)
        except _MISFITS:
            for key, value in env_info.items():
                try:
                    add(vector_infos, {key: value}, env_num)
                except _MISFITS:
                    _add_object(vector_infos, key, value, env_num, envs.num_envs)
            return vector_infos

    envs._add_info = add_any  # type: ignore[method-assign]
    return envs


def _add_object(infos: dict[str, Any], key: str, value: Any, i: int, num_envs: int) -> None:
    """Put row ``i`` of an entry beside what others have in it."""
    old, objects = infos.get(key), np.full(num_envs, None, dtype=object)
    given = infos.setdefault(f"_{key}", np.zeros(num_envs, bool))
    if isinstance(old, np.ndarray):
        for row in np.flatnonzero(given):
            objects[row] = old[row]
    objects[i], given[i] = value, True
    infos[key] = objects

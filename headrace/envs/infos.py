"""Collects infos of several environments with entries of any type and shape."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

_MISFITS = (AttributeError, IndexError, OverflowError, TypeError, ValueError)


def take_any_infos(envs: VectorEnv) -> VectorEnv:
    """Return ``envs`` with infos that needn't fit one array.

    Gymnasium takes an entry's dtype and shape from the first environment that reports it, and
    raises if another one differs: a list that grows, or None instead of a number. Here such an
    entry becomes an object array; all others stay unchanged.
    """
    add = envs._add_info

    def add_any(
        vector_infos: dict[str, Any], env_info: dict[str, Any], env_num: int
    ) -> dict[str, Any]:
        if not env_info:  # the common case
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
    """Add row ``i`` to an info entry of several environments."""
    old, objects = infos.get(key), np.full(num_envs, None, dtype=object)
    present = infos.setdefault(f"_{key}", np.zeros(num_envs, bool))
    if isinstance(old, np.ndarray):
        for row in np.flatnonzero(present):
            objects[row] = old[row]
    objects[i], present[i] = value, True
    infos[key] = objects

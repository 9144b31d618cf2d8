"""Joins and splits batches of several workers; row i is environment i."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from headrace.ops import tree
from headrace.spaces.walk import map_space
from headrace.types import Rollout


def join(space: gymnasium.Space, parts: list[Any]) -> Any:
    """Join batches of a single row's ``space``, in this order."""

    def leaf(_: gymnasium.Space, *rows: Any) -> Any:
        if isinstance(rows[0], np.ndarray):
            return np.concatenate(rows)
        return tuple(row for part in rows for row in part)  # texts, graphs and sequences

    return map_space(leaf, space, *parts)


def take(space: gymnasium.Space, batch: Any, rows: slice) -> Any:
    """Select rows of a batch of a single row's ``space``."""
    return map_space(lambda _, part: part[rows], space, batch)


def join_infos(parts: list[dict[str, Any]], size: int) -> dict[str, Any]:
    """Join Gymnasium's vector infos of several workers; missing keys are masked.

    Args:
        size: number of rows per worker.
    """
    joined: dict[str, Any] = {}
    for key in dict.fromkeys(key for part in parts for key in part):
        present = next(part[key] for part in parts if key in part)
        if isinstance(present, dict):
            joined[key] = join_infos([part.get(key, {}) for part in parts], size)
            continue
        like = np.asarray(present)
        missing = np.zeros((size, *like.shape[1:]), like.dtype)
        if like.dtype == object:
            missing.fill(None)
        columns = [np.asarray(part.get(key, missing)) for part in parts]
        joined[key] = np.concatenate([np.full(size, c) if c.ndim == 0 else c for c in columns])
    return joined


def join_rollouts(parts: list[dict[str, Any]]) -> Rollout:
    """Join workers' rollouts, dicts of arrays, into one of tensors."""

    def beside(name: str) -> Any:
        dim = 0 if name in ("core", "version", "env_id") else 1
        values = [part[name] for part in parts]
        return tree.map_leaves(lambda *x: torch.from_numpy(np.concatenate(x, dim)), *values)

    return Rollout(**{name: beside(name) for name in parts[0]})


def padding(
    num_steps: int,
    env_id: np.ndarray,
    last: Any,
    action: Any,
    core: Any,
    extras: dict[str, Any],
) -> dict[str, Any]:
    """Return a failed worker's part of a rollout, which consists of fillers.

    Args:
        env_id: its environments, ``[B]``.
        last: their latest observations, ``[B, ...]``.
        action: zeros, ``[B, ...]``.
        core: initial recurrent states, ``[B, ...]``.
        extras: those of one step of another worker or rollout, ``[B, ...]``; replaced by zeros.
    """
    shape = (num_steps, len(env_id))

    def repeated(count: int, values: Any) -> Any:
        return tree.map_leaves(lambda x: np.repeat(np.asarray(x)[None], count, axis=0), values)

    return {
        "obs": repeated(num_steps + 1, last),
        "first": np.ones((num_steps + 1, len(env_id)), bool),
        "action": repeated(num_steps, action),
        "log_prob": np.zeros(shape, np.float32),
        "reward": np.zeros(shape, np.float32),
        "terminated": np.zeros(shape, bool),
        "core": core,
        "version": np.full(len(env_id), -1),
        "episode_return": np.full(shape, np.nan, np.float32),
        "episode_length": np.full(shape, np.nan, np.float32),
        "env_id": env_id,
        "extras": repeated(num_steps, tree.map_leaves(np.zeros_like, extras)),
    }

"""Chooses actions for steps whose episode is discarded, by the masks of its first state."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv

from headrace.envs.mask_method import mask_bits, vector_method_of
from headrace.envs.random_play import mask_row
from headrace.ops import tree
from headrace.spaces.masks import MASK, sample_allowed


class FillerActions:
    """Allowed actions in the first states of episodes; equal states get equal actions.

    The policy chose its action in the last state of the previous episode, so an environment that
    raises on illegal actions may reject it.

    Args:
        envs: the environments that begin episodes.
        name: name of the environment, for messages.
    """

    def __init__(self, envs: VectorEnv, name: str) -> None:
        self._space, self._num_envs = copy.deepcopy(envs.single_action_space), envs.num_envs
        self._method, self._name = vector_method_of(envs), name
        self._mask: Any = None

    def note(self, obs: Any, infos: dict[str, Any]) -> None:
        """Keep the masks of environments whose episodes begin with these observations."""
        mask = obs[MASK] if isinstance(obs, dict) and MASK in obs else infos.get(MASK)
        if mask is None and self._method is not None and (masks := self._method()) is not None:
            mask = np.stack([mask_bits(self._space, one, self._name) for one in masks])
        self._mask = tree.map_leaves(copy.copy, mask)

    def of(self, rows: np.ndarray) -> np.ndarray | None:
        """Return an object array ``[B]`` with actions in ``rows`` ``[B]`` bool; None: no masks."""
        if self._mask is None:
            return None
        chosen = np.empty(self._num_envs, object)
        for i in np.flatnonzero(rows).tolist():
            self._space.seed(0)
            chosen[i] = sample_allowed(self._space, mask_row(self._mask, i))
        return chosen

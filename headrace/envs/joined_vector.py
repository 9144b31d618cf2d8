"""Environments that are stepped together, in spaces that other tasks fit as well."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Dict
from gymnasium.vector import VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from headrace.envs.joined import OBSERVATION, fitted, masked, own_action
from headrace.spaces.observations import TASK


class JoinedVector(VectorWrapper):
    """What :class:`~headrace.envs.joined.Joined` is around a single one.

    Args:
        envs: of one agent each. task: their number, which observations show; None: they don't.
    """

    def __init__(
        self,
        envs: VectorEnv,
        observation_space: gymnasium.Space[Any],
        action_space: gymnasium.Space[Any],
        task: int | None = None,
    ) -> None:
        super().__init__(envs)
        self.single_observation_space = observation_space
        self.single_action_space = action_space
        self.observation_space = batch_space(observation_space, envs.num_envs)
        self.action_space = batch_space(action_space, envs.num_envs)
        self._task = None if task is None else np.full(envs.num_envs, task, np.int64)

    def reset(self, **given: Any) -> tuple[Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.reset`."""
        obs, infos = self.env.reset(**given)
        return self._shown(obs), self._masked(infos)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """As :meth:`gymnasium.vector.VectorEnv.step`."""
        own = own_action(actions, self.env.single_action_space, self.single_action_space)
        obs, reward, terminated, truncated, infos = self.env.step(own)
        return self._shown(obs), reward, terminated, truncated, self._masked(infos)

    def _shown(self, obs: Any) -> Any:
        space = self.single_observation_space
        if self._task is None:
            return fitted(obs, space, 1)
        if not isinstance(self.env.single_observation_space, Dict):
            obs = {OBSERVATION: obs}
        assert isinstance(space, Dict)
        parts = {key: fitted(obs[key], part, 1) for key, part in space.items() if key != TASK}
        return {**parts, TASK: self._task}

    def _masked(self, infos: dict[str, Any]) -> dict[str, Any]:
        spaces = self.env.single_action_space, self.single_action_space
        return masked(infos, *spaces, batch=(self.num_envs,))

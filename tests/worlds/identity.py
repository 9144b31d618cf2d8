"""Minimal environment for training: the best action is what the observation shows."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


def _identity_spaces(n: int, continuous: bool) -> tuple[gymnasium.Space, gymnasium.Space]:
    if continuous:
        return Box(-1.0, 1.0, (1,), np.float32), Box(-1.0, 1.0, (1,), np.float32)
    return Box(0.0, 1.0, (n,), np.float32), Discrete(n)


class IdentityEnv(gymnasium.Env):
    """The best action is what the observation shows, and each step shows something new.

    Discrete: one of ``n`` actions, a one-hot observation, reward 1 for the action that it marks
    and 0 otherwise; the best return is ``episode_length``. Continuous: observation ``o`` and
    action ``a`` in [-1, 1], reward ``-(a - o)**2``; the best return is 0. Episodes terminate.

    Args:
        n: number of discrete actions.
        episode_length: steps of every episode.
        continuous: use continuous actions.
    """

    def __init__(self, n: int = 4, episode_length: int = 8, continuous: bool = False) -> None:
        self._one = IdentityVectorEnv(1, n, episode_length, continuous)
        self.observation_space = self._one.single_observation_space
        self.action_space = self._one.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        obs, infos = self._one.reset(seed=seed)
        return obs[0], infos

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Reward ``action`` and show the next observation."""
        obs, reward, terminated, truncated, infos = self._one.step(np.asarray(action)[None])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos


class IdentityVectorEnv(VectorEnv):
    """:class:`IdentityEnv`, natively vectorised, in NEXT_STEP autoreset; arguments as there."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int, n: int = 4, episode_length: int = 8, continuous: bool = False
    ) -> None:
        self.num_envs, self._n = num_envs, n
        self._episode_length, self._continuous = episode_length, continuous
        self.single_observation_space, self.single_action_space = _identity_spaces(n, continuous)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._steps = 0  # of the running episode; all environments end together

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in every environment."""
        super().reset(seed=seed)
        self._steps = 0
        return self._observe(), {}

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Reward ``actions`` and show the next observations."""
        none = np.zeros(self.num_envs, bool)
        if self._steps == self._episode_length:
            self._steps = 0
            return self._observe(), np.zeros(self.num_envs), none, none.copy(), {}
        actions = np.asarray(actions)
        if self._continuous:
            reward = -np.square(actions.reshape(self.num_envs) - self._obs[:, 0], dtype=np.float64)
        else:
            reward = self._obs[np.arange(self.num_envs), actions].astype(np.float64)
        self._steps += 1
        ended = np.full(self.num_envs, self._steps == self._episode_length)
        return self._observe(), reward, ended, none, {}

    def _observe(self) -> np.ndarray:
        if self._continuous:
            obs = self.np_random.uniform(-1, 1, (self.num_envs, 1)).astype(np.float32)
        else:
            marked = self.np_random.integers(self._n, size=self.num_envs)
            obs = np.eye(self._n, dtype=np.float32)[marked]
        self._obs = obs
        return obs.copy()

"""Environment whose observations identify their step."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

_MAX_ID = 2**24  # float32 holds every integer below
_COUNTING_SPACE = (-1.0, float(_MAX_ID), (4,), np.float32)
_NO_ACTION = -1


def counting_length(env_id: Any, episode: Any, episode_length: int = 5) -> Any:
    """Return the length of a CountingEnv's episode: ``episode_length`` plus 0, 1 and 2 in turn."""
    return episode_length + (env_id + episode) % 3


def counting_truncates(env_id: Any, episode: Any) -> Any:
    """Return whether a CountingEnv's episode is truncated, as every other one is."""
    return (env_id + episode) % 2 == 1


def counting_reward(episode: Any, step: Any, action: Any) -> Any:
    """Return a CountingEnv's reward for ``action`` in ``step``, exact in float32."""
    return 1000.0 * episode + step + 0.25 * action


class CountingEnv(gymnasium.Env):
    """Numbers its observations, so that lost, duplicate or shifted steps are detected.

    The observation is float32 ``[env, episode, step, last action]``: ``env`` is the last reset's
    seed modulo ``2**24`` (0 without), episodes count from 0 after a seeded reset, steps from 0,
    and the last action is -1 after a reset. Reward and ends are :func:`counting_reward`,
    :func:`counting_length` and :func:`counting_truncates`. There are three actions.

    Args:
        episode_length: steps of the shortest episode.
    """

    def __init__(self, episode_length: int = 5) -> None:
        self.observation_space = Box(*_COUNTING_SPACE)
        self.action_space = Discrete(3)
        self._episode_length = episode_length
        self._env, self._episode, self._step = 0, -1, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode, or with a seed the first one."""
        super().reset(seed=seed)
        if seed is None:
            self._episode += 1
        else:
            self._env, self._episode = seed % _MAX_ID, 0
        self._step = 0
        return self._observe(_NO_ACTION), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Count one step."""
        reward = counting_reward(self._episode, self._step, int(action))
        self._step += 1
        ends = self._step >= counting_length(self._env, self._episode, self._episode_length)
        by_truncation = counting_truncates(self._env, self._episode)
        observation = self._observe(int(action))
        return observation, reward, ends and not by_truncation, ends and by_truncation, {}

    def _observe(self, action: int) -> np.ndarray:
        return np.array([self._env, self._episode, self._step, action], np.float32)


class CountingVectorEnv(VectorEnv):
    """:class:`CountingEnv`, natively vectorised, in any of Gymnasium's three autoreset modes.

    After ``reset(seed=s)`` environment ``i`` calls itself ``s + i``. ``reset`` takes
    ``options={"reset_mask": mask}``.

    Args:
        episode_length: steps of the shortest episode.
        autoreset_mode: ``"NextStep"``, ``"SameStep"`` or ``"Disabled"``.
    """

    def __init__(
        self,
        num_envs: int,
        episode_length: int = 5,
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.num_envs = num_envs
        self.single_observation_space = Box(*_COUNTING_SPACE)
        self.single_action_space = Discrete(3)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self._mode}
        self._episode_length = episode_length
        self._obs = np.zeros((num_envs, 4), np.float32)
        self._obs[:, 1] = -1
        self._ended = np.zeros(num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start the next episode, or with a seed the first one, where the mask is true.

        Raises:
            ValueError: the mask selects nothing.
        """
        mask = (options or {}).get("reset_mask", np.ones(self.num_envs, bool))
        if not mask.any():
            raise ValueError("reset_mask must select at least one environment")
        if seed is not None:
            self._obs[mask, 0] = ((seed + np.arange(self.num_envs)) % _MAX_ID)[mask]
            self._obs[mask, 1] = -1
        self._begin(mask)
        return self._obs.copy(), {}

    def _begin(self, mask: np.ndarray) -> None:
        self._obs[mask, 1] += 1
        self._obs[mask, 2] = 0
        self._obs[mask, 3] = _NO_ACTION
        self._ended[mask] = False

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Count one step of every environment.

        Raises:
            RuntimeError: in DISABLED mode, an environment was stepped beyond its episode's end.
        """
        fillers = self._ended.copy()
        if self._mode is AutoresetMode.DISABLED and fillers.any():
            raise RuntimeError(f"reset environments {np.flatnonzero(fillers)} before stepping them")
        env_id, episode, step = (self._obs[:, k].copy() for k in range(3))
        reward = counting_reward(episode, step, np.asarray(actions))
        self._obs[:, 2] += 1
        self._obs[:, 3] = actions
        self._ended = self._obs[:, 2] >= counting_length(env_id, episode, self._episode_length)
        if fillers.any():
            self._begin(fillers)
            reward[fillers] = 0.0
        by_truncation = counting_truncates(env_id, episode)
        terminated, truncated = self._ended & ~by_truncation, self._ended & by_truncation
        infos: dict[str, Any] = {}
        if self._mode is AutoresetMode.SAME_STEP and self._ended.any():
            final_obs = np.where(self._ended[:, None], self._obs, np.float32(np.nan))
            infos = {"final_obs": final_obs, "_final_obs": self._ended.copy()}
            self._begin(self._ended.copy())
        return self._obs.copy(), reward, terminated, truncated, infos

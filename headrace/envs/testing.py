"""Environments whose every number is known beforehand, to test algorithms and plumbing with.

``CountingEnv`` labels every step, ``IdentityEnv`` has a known optimum that is learnt in seconds,
``FaultyEnv`` breaks on purpose and ``SlowEnv`` takes its time.
"""

from __future__ import annotations

import os
import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import ConfigError

_MAX_ID = 2**24  # float32 holds every integer below
_COUNTING_SPACE = (-1.0, float(_MAX_ID), (4,), np.float32)
_NO_ACTION = -1


def counting_length(env_id: Any, episode: Any, episode_length: int = 5) -> Any:
    """Steps of a CountingEnv's episode: ``episode_length`` plus 0, 1 and 2 in turn."""
    return episode_length + (env_id + episode) % 3


def counting_truncates(env_id: Any, episode: Any) -> Any:
    """Whether a CountingEnv's episode ends by truncation; every other one does."""
    return (env_id + episode) % 2 == 1


def counting_reward(episode: Any, step: Any, action: Any) -> Any:
    """Reward of a CountingEnv for ``action`` in the observation of ``step``; exact in float32."""
    return 1000.0 * episode + step + 0.25 * action


class CountingEnv(gymnasium.Env):
    """Says in each observation which one it is, so that a lost, doubled or shifted step shows.

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
        """Begin the next episode, or with a seed the first one."""
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
        """Begin the next episode, or with a seed the first one, where the mask is true.

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
        continuous: which of the two.
    """

    def __init__(self, n: int = 4, episode_length: int = 8, continuous: bool = False) -> None:
        self._one = IdentityVectorEnv(1, n, episode_length, continuous)
        self.observation_space = self._one.single_observation_space
        self.action_space = self._one.single_action_space

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode."""
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
        """Begin an episode in every environment."""
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


class _NoiseEnv(gymnasium.Env):
    """Four numbers of noise, two actions, reward 1 per step, episodes of 20 steps."""

    def __init__(self) -> None:
        self.observation_space = Box(-1.0, 1.0, (4,), np.float32)
        self.action_space = Discrete(2)
        self._step = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._step = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._step += 1
        return self._observe(), 1.0, self._step >= 20, False, {}

    def _observe(self) -> np.ndarray:
        return self.np_random.uniform(-1, 1, 4).astype(np.float32)


class FaultyEnv(_NoiseEnv):
    """Observes noise until it breaks; four observed numbers, two actions, reward 1 per step.

    Args:
        fail_at_step: which step of its life fails, from 1; resets don't count.
        mode: ``"raise"`` a RuntimeError, observe ``"nan"``, ``"hang"`` for ever, or ``"exit"`` the
            process with status 13.
        once: a path; the fault happens only to whoever creates this file, so that out of many
            environments one fails, and its replacement doesn't.

    Raises:
        ConfigError: the mode is unknown.
    """

    def __init__(
        self, fail_at_step: int = 10, mode: str = "raise", once: str | None = None
    ) -> None:
        super().__init__()
        if mode not in ("raise", "nan", "hang", "exit"):
            raise ConfigError(f"mode={mode!r} is unknown; choose raise, nan, hang or exit")
        self._fail_at_step, self._mode, self._once = fail_at_step, mode, once
        self._life = 0

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step, or the fault."""
        self._life += 1
        result = super().step(action)
        if self._life != self._fail_at_step or not self._is_chosen():
            return result
        if self._mode == "raise":
            raise RuntimeError(f"FaultyEnv failed at step {self._life}, as asked")
        if self._mode == "exit":
            os._exit(13)
        while self._mode == "hang":
            time.sleep(1.0)
        return np.full_like(result[0], np.nan), *result[1:]

    def _is_chosen(self) -> bool:
        if self._once is None:
            return True
        try:
            os.close(os.open(self._once, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True


class SlowEnv(_NoiseEnv):
    """Observes noise, as FaultyEnv does, and sleeps at every step.

    Args:
        step_seconds: how long a step takes.
    """

    def __init__(self, step_seconds: float = 0.01) -> None:
        super().__init__()
        self._step_seconds = step_seconds

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """One step, after the sleep."""
        time.sleep(self._step_seconds)
        return super().step(action)

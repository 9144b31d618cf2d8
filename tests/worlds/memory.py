"""Environment that requires memory: a cue at the start, a question at the end."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.errors import ConfigError
from worlds.space_identity import generators


class MemoryVectorEnv(VectorEnv):
    """The action of an episode's last step must be the cue that its first observation showed.

    Observation: float32 ``[num_cues + 1]``, the cue one-hot (first observation) or zeros (all
    others), then the time from 0 (first) to 1 (final). An episode has ``delay + 1`` steps and then
    terminates; its last action is taken ``delay`` steps after the cue was shown. Reward: 1 if that
    action is the cue, otherwise 0; 0 at all other steps. So the best return is 1
    (``best_return``) with memory and ``1 / num_cues`` without (``memoryless_return``). All episodes
    start and end together. NEXT_STEP autoreset.

    Args:
        num_envs: number of environments.
        num_cues: cues, and actions; 2 or more.
        delay: 1 or more.

    Raises:
        ConfigError: an argument is too small.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012
    best_return = 1.0

    def __init__(self, num_envs: int, num_cues: int = 4, delay: int = 6) -> None:
        for name, value, least in (("num_cues", num_cues, 2), ("delay", delay, 1)):
            if value < least:
                raise ConfigError(f"{name}={value} must be at least {least}")
        self.num_envs, self._num_cues, self._delay = num_envs, num_cues, delay
        self.single_observation_space = Box(0.0, 1.0, (num_cues + 1,), np.float32)
        self.single_action_space = Discrete(num_cues)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rngs = generators(num_envs, None)
        self._step = delay + 1

    @property
    def memoryless_return(self) -> float:
        """Return the best expected return of a policy that forgets the first observation."""
        return 1.0 / self._num_cues

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode in every environment."""
        super().reset(seed=seed)
        if seed is not None:
            self._rngs = generators(self.num_envs, seed)
        return self._begin(), {}

    def _begin(self) -> np.ndarray:
        self._step = 0
        self._cues = np.array([rng.integers(self._num_cues) for rng in self._rngs])
        return self._observe()

    def step(
        self, actions: Any
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Advance the time; reward the last step's actions; start a new episode after the end."""
        ended, reward = np.zeros(self.num_envs, bool), np.zeros(self.num_envs)
        if self._step > self._delay:
            return self._begin(), reward, ended, ended.copy(), {}
        if self._step == self._delay:
            reward[:] = np.asarray(actions) == self._cues
            ended[:] = True
        self._step += 1
        return self._observe(), reward, ended, np.zeros_like(ended), {}

    def _observe(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, self._num_cues + 1), np.float32)
        if self._step == 0:
            obs[np.arange(self.num_envs), self._cues] = 1.0
        obs[:, -1] = self._step / (self._delay + 1)
        return obs


class MemoryEnv(gymnasium.Env):
    """:class:`MemoryVectorEnv` for one: the same steps from the same seed; arguments as there."""

    best_return = MemoryVectorEnv.best_return

    def __init__(self, num_cues: int = 4, delay: int = 6) -> None:
        self._one = MemoryVectorEnv(1, num_cues, delay)
        self.observation_space = self._one.single_observation_space
        self.action_space = self._one.single_action_space
        self.memoryless_return = self._one.memoryless_return

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start an episode."""
        super().reset(seed=seed)
        obs, infos = self._one.reset(seed=seed)
        return obs[0], infos

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Advance the time; reward the last step's action."""
        obs, reward, terminated, truncated, infos = self._one.step(np.asarray(action)[None])
        return obs[0], float(reward[0]), bool(terminated[0]), bool(truncated[0]), infos

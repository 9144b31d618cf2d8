"""Images with a known best action: the bright quarter of the noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class BrightQuarter(VectorEnv):
    """Action ``i`` is rewarded by 1 if quarter ``i`` is the bright one; each step shows another.

    The best return is ``episode_length``, and a random policy gets a quarter of it. Episodes
    terminate.

    Args:
        channels, side: of the images ``[channels, side, side]`` uint8.
        episode_length: steps of every episode.
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(
        self, num_envs: int, channels: int = 2, side: int = 20, episode_length: int = 8
    ) -> None:
        self.num_envs, self._side, self._length = num_envs, side, episode_length
        self.single_observation_space = Box(0, 255, (channels, side, side), np.uint8)
        self.single_action_space = Discrete(4)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all episodes."""
        self._random = np.random.default_rng(seed)
        self._age = np.zeros(self.num_envs, int)
        self._done = np.zeros(self.num_envs, bool)
        return self._show(), {}

    def _show(self) -> np.ndarray:
        shape = self.num_envs, *self.single_observation_space.shape
        images = self._random.integers(0, 128, shape, dtype=np.uint8)
        self._bright = self._random.integers(4, size=self.num_envs)
        half = self._side // 2
        for image, quarter in zip(images, self._bright, strict=True):
            row, column = divmod(int(quarter), 2)
            image[:, row * half :][:, :half, column * half :][:, :, :half] += 100
        return images

    def step(
        self, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Reward the actions and show the next images; finished episodes only reset."""
        reward = np.where(self._done, 0.0, actions == self._bright)
        self._age = np.where(self._done, 0, self._age + 1)
        self._done = self._age == self._length
        return self._show(), reward, self._done.copy(), np.zeros(self.num_envs, bool), {}

"""Environment whose steps take a given time, as a stand-in for simulators."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np

LAB = (72, 96, 3)  # image size of DeepMind Lab in IMPALA
NUM_IMAGES = 16


class Costly(gymnasium.Env):
    """Shows noise: vectors of 32 numbers, or images of DeepMind Lab's size.

    Args:
        step_s, reset_s: seconds per step and per reset.
        episode_length: length of every episode, or the mean of a geometric distribution.
        varies: draw episode lengths from the distribution.
        busy: compute for that time instead of sleeping.
        pixels: show one of a few precomputed images.
    """

    observation_space = gymnasium.spaces.Box(-1, 1, (32,), np.float32)
    action_space = gymnasium.spaces.Discrete(4)

    def __init__(
        self,
        step_s: float,
        reset_s: float,
        episode_length: int,
        varies: bool,
        busy: bool,
        pixels: bool = False,
    ) -> None:
        self._step_s, self._reset_s, self._busy = step_s, reset_s, busy
        self._episode_length, self._varies = episode_length, varies
        self._left, self._images = 0, None
        if pixels:
            self.observation_space = gymnasium.spaces.Box(0, 255, LAB, np.uint8)
            size = (NUM_IMAGES, *LAB)
            self._images = np.random.default_rng(0).integers(0, 256, size, np.uint8)

    def _spend(self, seconds: float) -> None:
        if not self._busy:
            time.sleep(seconds)
            return
        # Thread CPU time: steps take longer on a shared core.
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            pass

    def _observation(self) -> np.ndarray:
        if self._images is not None:
            return self._images[self._left % NUM_IMAGES]
        return self.np_random.uniform(-1, 1, 32).astype(np.float32)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._spend(self._reset_s)
        self._left = self._episode_length
        if self._varies:
            self._left = int(self.np_random.geometric(1 / self._episode_length))
        return self._observation(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self._spend(self._step_s)
        self._left -= 1
        return self._observation(), 0.0, self._left <= 0, False, {}

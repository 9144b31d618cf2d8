"""An environment in which the most likely action is the worst policy."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Changing(gymnasium.Env):
    """Rewards actions that differ from the previous one, so a constant action gets no reward.

    Args:
        length: steps of an episode, and its best return.
        all_alike: reward a constant action instead.
    """

    def __init__(self, length: int = 8, all_alike: bool = False) -> None:
        self.observation_space = Box(-1, 1, (1,), np.float32)
        self.action_space = Discrete(4)
        self._length, self._all_alike = length, all_alike

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._age, self._last = 0, None
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        changed, self._last, self._age = action != self._last, action, self._age + 1
        reward = float(changed != self._all_alike)
        return np.zeros(1, np.float32), reward, self._age == self._length, False, {}

"""A grid of symbols that rewards naming the kind of an object."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Box, Discrete


class Symbols(gymnasium.Env):
    """Shows one of four objects in a grid of noise; its kind is the rewarded action.

    Args:
        high: upper bound of the grid's values.
        late: value that is shown from the 15th episode on; None: no such value.
        rare: value that is shown in a twentieth of the episodes; None: no such value.
        shape: shape of the grid.
    """

    def __init__(
        self,
        high: int = 255,
        late: int | None = None,
        shape: tuple[int, ...] = (5, 5, 2),
        rare: int | None = None,
    ) -> None:
        self.observation_space = Box(0, high, shape, np.uint8)
        self.action_space = Discrete(4)
        self._late, self._rare, self._episodes = late, rare, 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self._age, self._episodes = 0, self._episodes + 1
        self._is_rare = self.np_random.random() < 0.05
        return self._show(), {}

    def _show(self) -> np.ndarray:
        grid = self.np_random.integers(0, 3, self.observation_space.shape, dtype=np.uint8)
        self._kind = int(self.np_random.integers(4))
        grid.reshape(-1)[self.np_random.integers(grid.size)] = 3 + (7 * self._kind) % 5
        if self._late is not None and self._episodes > 14:
            grid.reshape(-1)[self.np_random.integers(grid.size)] = self._late
        if self._rare is not None and self._is_rare:
            grid.reshape(-1)[0] = self._rare
        return grid

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        reward, self._age = float(action == self._kind), self._age + 1
        return self._show(), reward, self._age == 8, False, {}

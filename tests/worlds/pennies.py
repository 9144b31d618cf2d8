"""Matching pennies: several rounds per game, many games at once."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space


class Pennies(VectorEnv):
    """The even player wins 1 if both show the same, the odd one otherwise.

    An observation is (seat, last own penny, last other one, noise that the seed decides).
    """

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP, "render_modes": []}  # noqa: RUF012
    agents = ("even", "odd")

    def __init__(self, num_envs: int = 2, rounds: int = 3, prize: float = 1.0) -> None:
        self.num_envs, self.render_mode, self._rounds, self._prize = num_envs, None, rounds, prize
        self.single_observation_space = Box(-1.0, 1.0, (4,), np.float32)
        self.single_action_space = Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._rng = np.random.default_rng()

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Start all games."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        self._round = np.zeros(self.num_envs // 2, int)
        self._last = np.full((self.num_envs // 2, 2), -1.0)
        return self._obs(), {}

    def step(self, actions: Any) -> Any:
        """Show pennies."""
        over = self._round == self._rounds
        shown = np.asarray(actions).reshape(-1, 2)
        same = np.where(shown[:, 0] == shown[:, 1], 1.0, -1.0)
        reward = np.where(over[:, None], 0.0, np.stack([same * self._prize, -same], 1))
        self._last = np.where(over[:, None], -1.0, shown)
        self._round = np.where(over, 0, self._round + 1)
        ends = np.repeat(self._round == self._rounds, 2)
        return self._obs(), reward.ravel(), ends, np.zeros_like(ends), {}

    def _obs(self) -> np.ndarray:
        obs = np.zeros((self.num_envs, 4), np.float32)
        obs[1::2, 0] = 1.0
        obs[:, 1] = self._last.ravel()
        obs[:, 2] = self._last[:, ::-1].ravel()
        obs[:, 3] = self._rng.uniform(-1, 1, self.num_envs)
        return obs

"""Rewards that are promised to add up to 0, held to that."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from headrace.envs.columns import absent_in, agents_of
from headrace.errors import EnvironmentFault

_SLACK = 1e-5  # of the greatest reward, for those that are sums of float32


class ZeroSum(VectorWrapper):
    """Games as they are, until the rewards of a game's agents don't add up to 0.

    All agents move at once: in turns, what one earns is told only when it moves again.

    Args:
        games: columns are agents, game by game. name: for messages.

    ``step`` raises EnvironmentFault naming the game's step, its agents and their rewards.
    """

    def __init__(self, games: VectorEnv, name: str) -> None:
        super().__init__(games)
        self.agents = agents_of(games)
        self._name, self._shape = name, (games.num_envs // len(self.agents), len(self.agents))

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        """Begin all games."""
        obs, infos = self.env.reset(**how)
        self._gone = absent_in(infos, self.num_envs)
        self._steps = np.zeros(self._shape[0], int)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every game."""
        returned = self.env.step(actions)
        _, reward, terminated, truncated, _ = returned
        begins = self._gone.reshape(self._shape).all(1)
        real = np.where(self._gone, 0.0, reward).reshape(self._shape)
        self._gone = np.logical_or(terminated, truncated)
        self._steps = np.where(begins, 0, self._steps + 1)
        wrong = np.abs(real.sum(1)) > _SLACK * np.maximum(1.0, np.abs(real).max(1))
        if wrong.any():
            game = int(np.flatnonzero(wrong)[0])
            each = zip(self.agents, real[game].tolist(), strict=True)
            told = ", ".join(f"{agent} {value:g}" for agent, value in each)
            raise EnvironmentFault(
                f"{self._name} isn't zero-sum, which zero_sum=True promises: the rewards at step "
                f"{self._steps[game]} of game {game} add up to {real[game].sum():g} ({told})"
            )
        return returned

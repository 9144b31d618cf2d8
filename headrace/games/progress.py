"""Follows episodes and returns of games from the results of their columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from headrace.games.vector import absent_in, agents_of, games_over


class GameProgress:
    """Episodes and returns of the games of a vector environment.

    Args:
        games: columns are agents, game by game.

    Attributes:
        gone: ``[B]`` bool, columns whose agent has ended or is absent.
        first: ``[B]`` bool, columns whose next action is the first of an episode.
        reward: ``[B]`` float64, last rewards; 0 in fillers.
        totals: ``[G, n]`` float64, returns of the games.
        over: ``[G]`` bool, finished games that have not restarted.
    """

    def __init__(self, games: Any) -> None:
        self._games = games
        num_agents = len(agents_of(games)) or 1
        self.totals = np.zeros((games.num_envs // num_agents, num_agents))
        self._flat_totals = self.totals.reshape(-1)  # a view
        self.reset({})

    def reset(self, infos: dict[str, Any]) -> None:
        """Begin all games; ``infos``: those of the games' reset."""
        count = self._games.num_envs
        self.gone, self.first = absent_in(infos, count), np.ones(count, bool)
        self.reward = np.zeros(count)
        self.over = games_over(self._games, self.gone.reshape(self.totals.shape))
        self.totals[:] = 0.0

    def record(self, done: Any, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Record the results of complete steps.

        Args:
            done: columns whose steps are complete, as an index.
            reward: ``[n]``, their rewards.
            ended: ``[n]`` bool, their episodes ended.

        Returns:
            ``[G]`` bool, games that these steps finished.
        """
        self.first[done] = self.gone[done]
        self.gone[done] = ended
        self.reward[done] = np.where(self.first[done], 0.0, reward)
        if self.over.any():
            self.totals[self.over] = 0.0
        self._flat_totals[done] += self.reward[done]
        before = self.over
        self.over = games_over(self._games, self.gone.reshape(self.totals.shape))
        return self.over & ~before

    def restart(self, games: np.ndarray) -> None:
        """Begin finished games ``[G]`` bool again, before their first step."""
        self.totals[games] = 0.0
        self.over = self.over & ~games

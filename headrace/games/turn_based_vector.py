"""Adapts turn-based games to a vector environment whose columns (agents) step separately.

A column's step lasts from its agent's move to its next turn, so other agents must move before it
ends. Stepping all columns together would deadlock; use ``send`` and ``receive``, as with
:class:`~headrace.envs.threads.Threads`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from headrace.games.agent_rows import MOVED, OVER, RETURNS, REWARD, TERMINATED, TRUNCATED, Game
from headrace.games.infos import ABSENT
from headrace.games.parallel_game_vector import ParallelGameVector, agents_of
from headrace.ops import tree


class TurnBasedVector(VectorEnv):
    """Turn-based games: column ``g * n + i`` is agent ``i`` of game ``g``.

    Args:
        games: a vector environment of ``game``
        (:class:`~headrace.games.turn_based_game.TurnBasedGame`).

    Attributes:
        over: ``[G]`` bool, games without remaining agents.
        on_end: called as the next game begins with the number of a finished game and its agents'
            returns ``[n]``.
    """

    def __init__(self, games: VectorEnv, game: Game) -> None:
        self._rows = ParallelGameVector(games, game)  # splits the games' results into columns
        self.games, self.agents, self.num_envs = games, game.agents, self._rows.num_envs
        self.own_spaces = game.own
        self.single_observation_space = game.observation_space
        self.single_action_space = game.action_space
        self.observation_space = batch_space(game.observation_space, self.num_envs)
        self.action_space = batch_space(game.action_space, self.num_envs)
        self.metadata, self.render_mode = self._rows.metadata, self._rows.render_mode
        self._actions = create_empty_array(game.action_space, self.num_envs, np.zeros)
        self._busy = np.zeros(self.num_envs, bool)  # [B] step in progress
        self._ready = np.zeros(0, np.int64)  # columns whose steps are done but not yet received
        self._obs: Any = None
        self.on_end: Callable[[int, np.ndarray], None] | None = None
        self._told, self._infos = np.zeros((4, self.num_envs)), dict[str, Any]()
        self.over = np.zeros(games.num_envs, bool)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games; ``infos[ABSENT]`` marks all columns except the first movers."""
        obs, infos = self.games.reset(seed=seed, options=options)
        self._keep(obs, infos)
        self._busy[:], self._ready = False, np.zeros(0, np.int64)
        return self._obs, {**self._infos, ABSENT: self._told[TERMINATED] > 0}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Begin a step of every idle column; ``infos["moved"]`` marks the columns whose steps are
        done.

        Actions of the other columns are ignored, and their observations are the previous ones.
        """
        rows = np.flatnonzero(~self._busy)
        self.send(rows, tree.map_leaves(lambda x: np.asarray(x)[rows], actions))
        moved = np.zeros(self.num_envs, bool)
        moved[self.receive()] = True
        results = self._told * moved
        flags = results[TERMINATED] > 0, results[TRUNCATED] > 0
        return self._obs, results[REWARD], *flags, {**self._infos, "moved": moved}

    @property
    def num_busy(self) -> int:
        """Number of columns :meth:`receive` can report before others are sent."""
        return len(self._ready)

    def send(self, rows: np.ndarray, actions: Any) -> None:
        """Begin a step of idle columns ``rows`` ``[n]``; actions: ``[n, ...]``.

        A step of an agent that had no turn yet is a filler, which its first turn ends.
        """
        tree.map_leaves(lambda to, x: to.__setitem__(rows, x), self._actions, actions)
        begins = np.zeros(self.num_envs, np.int8)
        begins[rows] = 1
        self._busy[rows] = True
        shape = self.games.num_envs, len(self.agents)
        grouped = tree.map_leaves(
            lambda x: x.reshape(*shape, *x.shape[1:]), (self._actions, begins)
        )
        obs, _, _, _, infos = self.games.step(grouped)
        self._keep(obs, infos)
        if self.on_end is not None and RETURNS in infos:
            for g in np.flatnonzero(infos[f"_{RETURNS}"]).tolist():
                self.on_end(g, infos[RETURNS][g])
        self._ready = np.flatnonzero(self._told[MOVED])
        self._busy[self._ready] = False

    def receive(self, enough: int = 1, linger_s: float = 0.0) -> np.ndarray:
        """Return ``[n]`` int64, the columns whose steps are done, without waiting."""
        ready, self._ready = self._ready, np.zeros(0, np.int64)
        return ready

    def results(self, rows: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations, rewards, terminated and truncated ``[n]`` of received columns."""
        obs = tree.map_leaves(lambda x: x[rows], self._obs)
        results_of_rows = self._told[:, rows]
        return (
            obs,
            results_of_rows[REWARD],
            results_of_rows[TERMINATED] > 0,
            results_of_rows[TRUNCATED] > 0,
        )

    def infos(self, rows: np.ndarray, only: str | None = None) -> dict[str, Any]:
        """Return masks of all columns, ``[B, ...]``, and infos of agents; all keys or ``only``
        one.
        """
        return self._infos if only is None else {k: self._infos[k] for k in self._own_keys(only)}

    def _own_keys(self, only: str) -> list[str]:
        return [key for key in (only, f"_{only}") if key in self._infos]

    def _keep(self, obs: Any, infos: dict[str, Any]) -> None:
        self._obs, self._told, self._infos = self._rows.split_columns(obs, infos)
        self.over = np.array(infos[OVER], bool)

    def render(self) -> Any:
        """Render each game."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        self.games.close(**kwargs)


def games_over(games: VectorEnv, gone: np.ndarray) -> np.ndarray:
    """Return which games or single-agent environments are over, ``[G]`` bool: all columns ``gone``.

    In turn-based games agents without a turn so far are gone as well and may still join, so the
    game's own flag is used.
    """
    if isinstance(games, TurnBasedVector):
        return games.over
    return np.asarray(gone.reshape(-1, len(agents_of(games)) or 1).all(1))

"""Presents games as a vector environment whose columns are their agents.

Simultaneous games step together. In turn-based games a column's step lasts from its agent's move to
its next turn, so other agents must move before it ends, and stepping all columns together would
deadlock: use ``send`` and ``receive``, as with :class:`~headrace.envs.threads.Threads`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from headrace.games.agent_rows import GameSpec
from headrace.games.infos import (
    ABSENT,
    AGENT_INFOS,
    COMPLETE,
    FLAGS,
    GAME,
    MOVED,
    OVER,
    RETURNS,
    TERMINATED,
    TRUNCATED,
)
from headrace.ops import tree
from headrace.spaces.masks import MASK


def agents_of(envs: Any) -> tuple[str, ...]:
    """Return the names of a game's columns, in order; () if columns are environments."""
    names = getattr(envs, "agents", ())
    named = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
    return tuple(names) if named else ()


def absent_in(infos: dict[str, Any], num_envs: int) -> np.ndarray:
    """Return the columns without an agent after a reset, ``[B]`` bool."""
    return np.array(infos.get(ABSENT, np.zeros(num_envs, bool)), bool)


class GameVector(VectorEnv):
    """Games as columns: column ``g * n + i`` is agent ``i`` of game ``g``.

    Each column autoresets separately in NEXT_STEP mode. After its end a column has fillers until
    its agent returns, at the latest in the next game, which begins at the step after the last agent
    of the game ended. A column that reports a second end in a row is absent, and its steps are
    fillers. ``reset`` has no flags; it lists absent columns in ``infos[ABSENT]``: in turn-based
    games all except the first movers.

    Args:
        games: a vector environment of :class:`~headrace.games.game_env.GameEnv`, with a reward
            ``[n]`` for each game.
        spec: agents and spaces of the game.

    Attributes:
        obs: ``[B, ...]`` latest observations, which the next step overwrites.
        over: ``[G]`` bool, turn-based games without remaining agents.
        on_end: called as the next turn-based game begins with the number of a finished game and its
            agents' returns ``[n]``.
    """

    def __init__(self, games: VectorEnv, spec: GameSpec) -> None:
        self.games, self.agents, self.own_spaces = games, spec.agents, spec.own
        self.in_turns = spec.in_turns
        self._shape = games.num_envs, len(spec.agents)
        self.num_envs = games.num_envs * len(spec.agents)
        self.single_observation_space = spec.observation_space
        self.single_action_space = spec.action_space
        self.observation_space = batch_space(spec.observation_space, self.num_envs)
        self.action_space = batch_space(spec.action_space, self.num_envs)
        self.metadata = {key: value for key, value in games.metadata.items() if key != GAME}
        self.render_mode = games.render_mode
        self.on_end: Callable[[int, np.ndarray], None] | None = None
        self.obs: Any = None
        self.over = np.zeros(games.num_envs, bool)
        self._reward = np.zeros(self.num_envs)
        self._flags = np.zeros((4, self.num_envs), bool)
        self._infos = dict[str, Any]()
        self._actions = create_empty_array(spec.action_space, self.num_envs, np.zeros)
        self._busy = np.zeros(self.num_envs, bool)  # [B] step in progress
        self._ready = np.zeros(0, np.int64)  # columns whose steps are done but not yet received

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games, with seeds ``seed``, ``seed + 1`` …"""
        obs, infos = self.games.reset(seed=seed, options=options)
        self._keep(obs, np.zeros(self._shape), infos)
        self.over = infos[FLAGS][:, OVER, 0]
        self._busy[:], self._ready = False, np.zeros(0, np.int64)
        return self.obs, {**self._infos, ABSENT: self._flags[TERMINATED]}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game, or in turn-based games begin a step of every idle column.

        With turn-based games ``infos["moved"]`` marks the columns whose steps are done. Actions of
        the other columns are ignored, and their observations are the previous ones.
        """
        if not self.in_turns:
            self._step_games(actions)
            terminated, truncated = self._flags[TERMINATED], self._flags[TRUNCATED]
            return self.obs, self._reward, terminated, truncated, self._infos
        rows = np.flatnonzero(~self._busy)
        self.send(rows, tree.map_leaves(lambda x: np.asarray(x)[rows], actions))
        moved = np.zeros(self.num_envs, bool)
        moved[self.receive()] = True
        flags = self._flags & moved
        infos = {**self._infos, MOVED: moved}
        return self.obs, self._reward * moved, flags[TERMINATED], flags[TRUNCATED], infos

    @property
    def num_busy(self) -> int:
        """Number of columns :meth:`receive` can report before others are sent."""
        return len(self._ready)

    def send(self, rows: np.ndarray, actions: Any) -> None:
        """Begin a step of idle columns ``rows`` ``[n]`` of turn-based games.

        A step of an agent that had no turn yet is a filler, which its first turn ends.

        Args:
            rows: idle columns.
            actions: ``[n, ...]``.
        """
        tree.map_leaves(lambda to, x: to.__setitem__(rows, x), self._actions, actions)
        begins = np.zeros(self.num_envs, np.int8)
        begins[rows] = 1
        self._busy[rows] = True
        infos = self._step_games((self._actions, begins))
        self.over = infos[FLAGS][:, OVER, 0]
        if self.on_end is not None and RETURNS in infos:
            for g in np.flatnonzero(infos[f"_{RETURNS}"]).tolist():
                self.on_end(g, infos[RETURNS][g])
        self._ready = np.flatnonzero(self._flags[COMPLETE])
        self._busy[self._ready] = False

    def receive(self, enough: int = 1, linger_s: float = 0.0) -> np.ndarray:
        """Return ``[n]`` int64, the columns whose steps are done, without waiting."""
        ready, self._ready = self._ready, np.zeros(0, np.int64)
        return ready

    def results(self, rows: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations, rewards, terminated and truncated ``[n]`` of received columns."""
        obs = tree.map_leaves(lambda x: x[rows], self.obs)
        flags = self._flags[:, rows]
        return obs, self._reward[rows], flags[TERMINATED], flags[TRUNCATED]

    def infos(self, rows: np.ndarray, only: str | None = None) -> dict[str, Any]:
        """Return masks of all columns, ``[B, ...]``, and infos of agents.

        Args:
            only: key to return; None: all.
        """
        if only is None:
            return self._infos
        return {key: self._infos[key] for key in (only, f"_{only}") if key in self._infos}

    def _step_games(self, actions: Any) -> dict[str, Any]:
        """Step the games with actions of all columns, store the results and return the infos."""
        grouped = tree.map_leaves(lambda x: np.reshape(x, (*self._shape, *x.shape[1:])), actions)
        obs, reward, _, _, infos = self.games.step(grouped)
        self._keep(obs, reward, infos)
        return infos

    def _keep(self, obs: Any, reward: np.ndarray, infos: dict[str, Any]) -> None:
        """Store the games' results ``[G, n, ...]`` as columns ``[B, ...]``."""
        count = self.num_envs
        self.obs = tree.map_leaves(lambda x: x.reshape(count, *x.shape[2:]), obs)
        self._reward = reward.reshape(count)
        self._flags = infos[FLAGS].swapaxes(0, 1).reshape(4, count)
        self._infos = self._column_infos(infos)

    def _column_infos(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the masks of all columns and the agents' infos, if there are any."""
        num_agents, column_infos = self._shape[1], dict[str, Any]()
        if MASK in infos:
            column_infos[MASK] = infos[MASK].reshape(self.num_envs, -1)
            column_infos[f"_{MASK}"] = np.repeat(infos[f"_{MASK}"], num_agents)
        if AGENT_INFOS in infos:
            none: list[dict[str, Any]] = [{}] * num_agents
            each = zip(infos[AGENT_INFOS], infos[f"_{AGENT_INFOS}"], strict=True)
            column_infos[AGENT_INFOS] = [
                info for own, present in each for info in (own if present else none)
            ]
        return column_infos

    def render(self) -> Any:
        """Render each game."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        self.games.close(**kwargs)


def in_turns(envs: Any) -> TypeGuard[GameVector]:
    """Return whether ``envs`` are turn-based games, whose columns step separately."""
    return isinstance(envs, GameVector) and envs.in_turns


def games_over(games: Any, gone: np.ndarray) -> np.ndarray:
    """Return which games are over, ``[G]`` bool.

    A simultaneous game is over when all its agents are gone. In turn-based games agents without a
    turn so far are gone as well and may still join, so the game's own flag is used.

    Args:
        games: a vector environment of games.
        gone: ``[G, n]`` bool, agents that have ended or are absent.
    """
    return np.asarray(games.over if in_turns(games) else gone.all(1))

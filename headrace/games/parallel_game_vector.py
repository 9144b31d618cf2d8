"""Adapts simultaneous games to a vector environment whose columns are agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.games.agent_rows import GAME, REWARD, TERMINATED, TOLD, TRUNCATED, Game
from headrace.games.infos import ABSENT, AGENT_INFOS
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


class ParallelGameVector(VectorEnv):
    """Games in which all agents move at once: column ``g * n + i`` is agent ``i`` of game ``g``.

    Each column autoresets separately in NEXT_STEP mode. After its end a column has fillers until
    its agent returns, at the latest in the next game, which begins at the step after the last agent
    of the game ended. A column that reports a second end in a row is absent, and its steps are
    fillers. ``reset`` has no flags; it lists absent columns in ``infos[ABSENT]``.

    Args:
        games: a vector environment of ``game``
        (:class:`~headrace.games.parallel_game.ParallelGame`).
    """

    def __init__(self, games: VectorEnv, game: Game) -> None:
        self.games, self.agents, self.own_spaces = games, game.agents, game.own
        self._shape = games.num_envs, len(game.agents)
        self.num_envs = games.num_envs * len(game.agents)
        self.single_observation_space = game.observation_space
        self.single_action_space = game.action_space
        self.observation_space = batch_space(game.observation_space, self.num_envs)
        self.action_space = batch_space(game.action_space, self.num_envs)
        self.metadata = {key: value for key, value in games.metadata.items() if key != GAME}
        self.render_mode = games.render_mode

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games, with seeds ``seed``, ``seed + 1`` …"""
        returned = self.games.reset(seed=seed, options=options)
        obs, results, masks = self.split_columns(*returned)
        return obs, {**masks, ABSENT: results[TERMINATED] > 0}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game."""
        grouped = tree.map_leaves(lambda x: np.reshape(x, (*self._shape, *x.shape[1:])), actions)
        obs, _, _, _, infos = self.games.step(grouped)
        obs, results, masks = self.split_columns(obs, infos)
        return obs, results[REWARD], results[TERMINATED] > 0, results[TRUNCATED] > 0, masks

    def split_columns(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, np.ndarray, Any]:
        """Split the games' observations and infos into columns: ``[B, ...]``, ``[4, B]`` and
        masks.
        """
        results = infos[TOLD].swapaxes(0, 1).reshape(infos[TOLD].shape[1], self.num_envs)
        flat = tree.map_leaves(lambda x: x.reshape(self.num_envs, *x.shape[2:]), obs)
        return flat, results, self._masks(infos)

    def _masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Return the masks of all columns and the agents' infos, if there are any."""
        agent_infos: dict[str, Any] = {}
        if AGENT_INFOS in infos:
            none: list[dict[str, Any]] = [{}] * self._shape[1]
            each = zip(infos[AGENT_INFOS], infos[f"_{AGENT_INFOS}"], strict=True)
            agent_infos[AGENT_INFOS] = [
                one for own, given in each for one in (own if given else none)
            ]
        if MASK not in infos:
            return agent_infos
        given = np.repeat(infos[f"_{MASK}"], self._shape[1])
        return {MASK: infos[MASK].reshape(self.num_envs, -1), f"_{MASK}": given, **agent_infos}

    def render(self) -> Any:
        """Render each game."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        self.games.close(**kwargs)

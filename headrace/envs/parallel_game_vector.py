"""Games as a vector environment whose columns are their agents."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.envs.agent_rows import GAME, REWARD, TERMINATED, TOLD, TRUNCATED, Game
from headrace.envs.info_metrics import AGENT_INFOS
from headrace.ops import tree
from headrace.spaces.masks import MASK

ABSENT = "absent"  # in the infos of reset: [B] bool, columns whose agent isn't there


def agents_of(envs: Any) -> tuple[str, ...]:
    """The names of the columns of one game, in order; () where columns are environments."""
    names = getattr(envs, "agents", ())
    named = isinstance(names, (tuple, list)) and all(isinstance(name, str) for name in names)
    return tuple(names) if named else ()


def absent_in(infos: dict[str, Any], num_envs: int) -> np.ndarray:
    """Which columns have no agent after a reset with such infos, ``[B]`` bool."""
    return np.array(infos.get(ABSENT, np.zeros(num_envs, bool)), bool)


class ParallelGameVector(VectorEnv):
    """Games in which all agents move at once: column ``g * n + i`` is agent ``i`` of game ``g``.

    It is in NEXT_STEP autoreset column by column: behind its end a column waits, with fillers,
    until its agent is there again, at the latest in the next game, which begins at the step after
    the one with which the last agent of the game ended. A column that has ended and reports an end
    once more is absent, and its steps are fillers; after ``reset``, which has no flags, those of
    ``infos[ABSENT]`` are.

    Args:
        games: a vector environment of ``game``
        (:class:`~headrace.envs.parallel_game.ParallelGame`).
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
        obs, told, masks = self.taken_apart(*returned)
        return obs, {**masks, ABSENT: told[TERMINATED] > 0}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """One step of every game."""
        grouped = tree.map_leaves(lambda x: np.reshape(x, (*self._shape, *x.shape[1:])), actions)
        obs, _, _, _, infos = self.games.step(grouped)
        obs, told, masks = self.taken_apart(obs, infos)
        return obs, told[REWARD], told[TERMINATED] > 0, told[TRUNCATED] > 0, masks

    def taken_apart(self, obs: Any, infos: dict[str, Any]) -> tuple[Any, np.ndarray, Any]:
        """What games show and tell, column by column: ``[B, ...]``, ``[4, B]`` and masks."""
        told = infos[TOLD].swapaxes(0, 1).reshape(infos[TOLD].shape[1], self.num_envs)
        flat = tree.map_leaves(lambda x: x.reshape(self.num_envs, *x.shape[2:]), obs)
        return flat, told, self._masks(infos)

    def _masks(self, infos: dict[str, Any]) -> dict[str, Any]:
        """Masks of all columns and infos of agents, as far as there are any."""
        told: dict[str, Any] = {}
        if AGENT_INFOS in infos:
            none: list[dict[str, Any]] = [{}] * self._shape[1]
            each = zip(infos[AGENT_INFOS], infos[f"_{AGENT_INFOS}"], strict=True)
            told[AGENT_INFOS] = [one for own, given in each for one in (own if given else none)]
        if MASK not in infos:
            return told
        given = np.repeat(infos[f"_{MASK}"], self._shape[1])
        return {MASK: infos[MASK].reshape(self.num_envs, -1), f"_{MASK}": given, **told}

    def render(self) -> Any:
        """What each game shows."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games."""
        self.games.close(**kwargs)

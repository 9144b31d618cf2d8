"""Vector environment of games with opponents that exposes only the learner's seats.

    columns of the learner:  game 0: a b | game 1: a b | game 2: a | game 3:   b | ...
                             every seat is the learner's | the others are a snapshot's

The actor, the learner and the algorithm are unaware of opponents: the other seats are played here,
and only the frozen policies' actions are computed for them. If one seat is the learner's, it moves
to the next seat in the next game, and a new opponent is sampled. ``turn_based_opponent_env.py``
does the same for turn-based games.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.games.infos import ABSENT, AGENT_INFOS
from headrace.games.parallel_game_vector import absent_in
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.matchmaking import Matchmaking
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.types import Tree


class OpponentEnv(VectorEnv):
    """The learner's columns of ``games``: those of every seat first, then one of each other game.

    It follows the same rules about ends and absence as
    :class:`headrace.games.parallel_game_vector.ParallelGameVector`.

    Args:
        games: columns are agents, game by game.
        num_columns: number of the learner's columns.
        num_agents: number of agents of a game.
        mixture: mixture of opponents.
        draw: sampler of opponents.
    """

    def __init__(
        self,
        games: VectorEnv,
        num_columns: int,
        num_agents: int,
        mixture: OpponentMix,
        draw: OpponentSampler,
    ) -> None:
        self.games, self.num_envs, self._draw = games, num_columns, draw
        self.single_observation_space = games.single_observation_space
        self.single_action_space = games.single_action_space
        self.observation_space = batch_space(games.single_observation_space, num_columns)
        self.action_space = batch_space(games.single_action_space, num_columns)
        self.metadata, self.render_mode = games.metadata, games.render_mode
        spaces = games.single_observation_space, games.single_action_space
        self._frozen = FrozenOpponents(draw.load, spaces, games.num_envs)
        self._table = Matchmaking(num_columns, num_agents, mixture, self._frozen, draw)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games; ``seed`` seeds the games, the opponents and their actions."""
        self._draw.seed(seed)
        if seed is not None:
            self._frozen.seed(seed)
        obs, infos = self.games.reset(seed=seed, options=options)
        count = self.games.num_envs
        self._gone, self._first = absent_in(infos, count), np.ones(count, bool)
        self._reward = np.zeros(count)
        self._keep(obs, infos)
        self._table.reset()
        return self._own(obs), {**self._infos(), ABSENT: self._gone[self._table.columns]}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game; ``actions``: actions of the learner's columns ``[N, ...]``."""
        table = self._table
        self._play_frozen()
        own = table.columns
        merged = tree.map_leaves(np.array, self._frozen.actions)  # games may keep them
        tree.map_leaves(lambda to, x: to.__setitem__(own, x), merged, actions)
        obs, reward, terminated, truncated, infos = self.games.step(merged)
        begins = np.asarray(self._gone.reshape(table.shape).all(1))
        self._first, self._gone = self._gone, np.asarray(terminated | truncated)
        self._reward = np.where(self._first, 0.0, reward)
        table.totals += self._reward.reshape(table.shape)
        self._keep(obs, infos)
        table.begin(begins)
        table.note(np.asarray(self._gone.reshape(table.shape).all(1) & ~begins))
        own = table.columns
        return self._own(obs), reward[own], terminated[own], truncated[own], self._infos()

    def render(self) -> Any:
        """Render the games."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games and write their results."""
        self._draw.close()
        self._frozen.close()
        self.games.close(**kwargs)

    def _play_frozen(self) -> None:
        others = self._table.others
        others = others[~self._gone[others]]
        if len(others):
            inputs = self._obs, self._mask, self._reward, self._first
            self._frozen.act(self._table.players(others), others, inputs)

    def _keep(self, obs: Tree, infos: dict[str, Any]) -> None:
        self._obs, self._mask = obs, info_mask(infos)
        self._told = infos.get(AGENT_INFOS)

    def _own(self, rows: Tree) -> Tree:
        own = self._table.columns
        return tree.map_leaves(lambda x: x[own], rows)

    def _infos(self) -> dict[str, Any]:
        infos = {} if self._mask is None else {MASK: self._own(self._mask)}
        if self._told is not None:
            infos[AGENT_INFOS] = [self._told[i] for i in self._table.columns.tolist()]
        return infos

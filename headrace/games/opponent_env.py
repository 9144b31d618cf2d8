"""Vector environment of games with opponents that exposes only the learner's seats.

    columns of the learner:  game 0: a b | game 1: a b | game 2: a | game 3:   b | ...
                             every seat is the learner's | the others are a snapshot's

The actor, the learner and the algorithm are unaware of opponents: the other seats are played here,
and only the frozen policies' actions are computed for them. If one seat is the learner's, it moves
to the next seat in the next game, and a new opponent is sampled.

In turn-based games each of the learner's seats is at its own step, which lasts from its move to its
next turn:

    send(rows, actions) ──► games ──► turn of a snapshot: it moves, and so on
                                                         turn of the learner: receive() reports it
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.infos import ABSENT, AGENT_INFOS
from headrace.games.matchmaking import Matchmaking
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler
from headrace.games.progress import GameProgress
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.masks import MASK
from headrace.types import Tree

_ALL = slice(None)


class OpponentEnv(VectorEnv):
    """The learner's columns of ``games``: those of every seat first, then one of each other game.

    It follows the same rules about ends and absence as :class:`headrace.games.vector.GameVector`.
    Simultaneous games are stepped with :meth:`step`, turn-based ones with :meth:`send` and
    :meth:`receive`. A finished turn-based game restarts, with the learner in another seat, when the
    learner begins its next step.

    Args:
        games: columns are agents, game by game; a GameVector if it is turn-based.
        num_columns: number of the learner's columns.
        num_agents: number of agents of a game.
        mixture: mixture of opponents.
        draw: sampler of opponents.
    """

    def __init__(
        self,
        games: Any,
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
        self._actions = self._frozen.actions  # [B, ...] of all columns
        self._matches = Matchmaking(num_columns, num_agents, mixture, self._frozen, draw)
        self._progress = GameProgress(games)
        self._waits = np.zeros(num_columns, bool)  # [N] learner's turn-based steps in progress
        self._ready = np.zeros(0, np.int64)  # learner's columns whose steps are done

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games; ``seed`` seeds the games, the opponents and their actions.

        ``infos[ABSENT]`` marks the learner's seats without an agent, in turn-based games those that
        don't move first.
        """
        self._draw.seed(seed)
        if seed is not None:
            self._frozen.seed(seed)
        obs, infos = self.games.reset(seed=seed, options=options)
        self._progress.reset(infos)
        self._busy = np.zeros(
            self.games.num_envs, bool
        )  # [B] step of a turn-based game in progress
        self._waits[:], self._ready = False, np.zeros(0, np.int64)
        self._keep(obs, infos)
        self._matches.reset()
        own = self._matches.columns
        return self._own(obs), {**self.infos(own), ABSENT: self._progress.gone[own]}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every simultaneous game.

        Args:
            actions: actions of the learner's columns ``[N, ...]``.
        """
        matches = self._matches
        self._act_frozen(matches.others)
        self._put_actions(matches.columns, actions)
        merged = tree.map_leaves(np.array, self._actions)  # games may keep them
        obs, reward, terminated, truncated, infos = self.games.step(merged)
        restarted = self._progress.over
        self._record(_ALL, reward, terminated | truncated)
        self._keep(obs, infos)
        matches.begin(restarted)
        own = matches.columns
        return self._own(obs), reward[own], terminated[own], truncated[own], self.infos(own)

    @property
    def num_busy(self) -> int:
        """Number of columns :meth:`receive` can report before others are sent."""
        return len(self._ready)

    def send(self, rows: np.ndarray, actions: Any) -> None:
        """Begin a step of columns ``rows`` ``[n]``, and let opponents move as long as they can."""
        matches, games = self._matches, self.games
        columns = matches.columns[rows]
        self._put_actions(columns, actions)
        self._waits[rows] = True
        ready = [self._ready]
        while True:
            columns = np.union1d(columns, self._restart())
            columns = np.union1d(columns, self._opponents_to_send())
            columns = columns[~self._busy[columns]]
            if not len(columns):
                break
            self._busy[columns] = True
            games.send(columns, tree.map_leaves(lambda x, at=columns: x[at], self._actions))
            done = games.receive()
            _, reward, terminated, truncated = games.results(done)
            self._busy[done] = False
            self._record(done, reward, terminated | truncated)
            self._keep(games.obs, games.infos(done))
            mine = np.flatnonzero(self._waits & np.isin(matches.columns, done))
            self._waits[mine] = False
            ready.append(mine)
            columns = np.zeros(0, np.int64)
        self._ready = np.concatenate(ready)

    def receive(self, enough: int = 1, linger_s: float = 0.0) -> np.ndarray:
        """Return ``[n]`` int64, the columns whose steps are done, without waiting."""
        ready, self._ready = self._ready, np.zeros(0, np.int64)
        return ready

    def results(self, rows: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
        """Return observations, rewards, terminated and truncated ``[n]`` of received columns."""
        results: tuple[Any, np.ndarray, np.ndarray, np.ndarray]
        results = self.games.results(self._matches.columns[rows])
        return results

    def infos(self, rows: np.ndarray, only: str | None = None) -> dict[str, Any]:
        """Return masks of all columns, ``[N, ...]``, and infos of agents.

        Args:
            only: a key other than that of agents' infos, which are left out; None: all.
        """
        infos = {} if self._mask is None else {MASK: self._own(self._mask)}
        if only is None and self._agent_infos is not None:
            infos[AGENT_INFOS] = [self._agent_infos[i] for i in self._matches.columns.tolist()]
        return infos

    def render(self) -> Any:
        """Render the games."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games and write their results."""
        self._draw.close()
        self._frozen.close()
        self.games.close(**kwargs)

    def _put_actions(self, columns: np.ndarray, actions: Any) -> None:
        tree.map_leaves(lambda to, x: to.__setitem__(columns, x), self._actions, actions)

    def _act_frozen(self, columns: np.ndarray) -> None:
        """Choose the actions of the opponents' ``columns`` that have an agent."""
        progress = self._progress
        acting = columns[~progress.gone[columns]]
        if len(acting):
            inputs = self._obs, self._mask, progress.reward, progress.first
            self._frozen.act(self._matches.players(acting), acting, inputs)

    def _opponents_to_send(self) -> np.ndarray:
        """Choose the actions of the opponents to move, and return the columns to be sent."""
        others = self._matches.others
        others = others[
            ~self._busy[others] & ~self._progress.over[others // self._matches.shape[1]]
        ]
        self._act_frozen(others)
        return others

    def _restart(self) -> np.ndarray:
        """Return the columns of finished turn-based games in which the learner began a step."""
        matches = self._matches
        waiting = matches.columns[self._waits] // matches.shape[1]
        begins = self._progress.over & np.isin(np.arange(matches.shape[0]), waiting)
        matches.begin(begins)
        self._progress.restart(begins)
        all_trained = np.repeat(begins, matches.shape[1])
        all_trained[matches.columns[~self._waits]] = False  # these games restart on their own
        return np.flatnonzero(all_trained)

    def _record(self, done: Any, reward: np.ndarray, ended: np.ndarray) -> None:
        """Record the results of complete steps of the games' columns ``done``."""
        over = self._progress.record(done, reward, ended)
        self._matches.note(over, self._progress.totals)

    def _keep(self, obs: Tree, infos: dict[str, Any]) -> None:
        self._obs, self._mask = obs, info_mask(infos)
        self._agent_infos = infos.get(AGENT_INFOS)

    def _own(self, rows: Tree) -> Tree:
        own = self._matches.columns
        return tree.map_leaves(lambda x: x[own], rows)

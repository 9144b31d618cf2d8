"""Turn-based games with opponents that expose only the learner's seats, each at its own step.

    send(rows, actions) ──► games ──► turn of a snapshot: it moves, and so on
                                                         turn of the learner: receive() reports it

A learner's step lasts from its move to its next turn.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space, create_empty_array

from headrace.games.infos import ABSENT, AGENT_INFOS
from headrace.games.parallel_game_vector import absent_in
from headrace.games.turn_based_vector import TurnBasedVector
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.matchmaking import Matchmaking
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler
from headrace.nn.inputs import info_mask
from headrace.ops import tree
from headrace.spaces.masks import MASK


class TurnBasedOpponentEnv(VectorEnv):
    """Like :class:`headrace.games.opponent_env.OpponentEnv`, for turn-based games.

    A finished game restarts, with the learner in another seat, when the learner begins its next
    step.

    Args:
        games: a :class:`headrace.games.turn_based_vector.TurnBasedVector`.
        num_columns, num_agents, mixture, draw: see ``OpponentEnv``.
    """

    def __init__(
        self,
        games: TurnBasedVector,
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
        self._actions: Any = create_empty_array(spaces[1], games.num_envs, np.zeros)
        self._table = Matchmaking(num_columns, num_agents, mixture, self._frozen, draw)
        self._waits = np.zeros(num_columns, bool)  # [N] learner's steps in progress
        self._ready = np.zeros(0, np.int64)  # learner's columns whose steps are done

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin all games; ``infos[ABSENT]`` marks the learner's seats that don't move first."""
        self._draw.seed(seed)
        if seed is not None:
            self._frozen.seed(seed)
        _, infos = self.games.reset(seed=seed, options=options)
        count = self.games.num_envs
        self._gone, self._first = absent_in(infos, count), np.ones(count, bool)
        self._reward, self._busy = np.zeros(count), np.zeros(count, bool)
        self._over = np.zeros(self._table.shape[0], bool)  # finished games that wait for a restart
        self._waits[:], self._ready = False, np.zeros(0, np.int64)
        self._table.reset()
        own = self._table.columns
        obs, *_ = self.games.results(own)
        everyone = np.arange(self.num_envs)
        return obs, {**self.infos(everyone), ABSENT: self._gone[own]}

    @property
    def num_busy(self) -> int:
        """Number of columns :meth:`receive` can report before others are sent."""
        return len(self._ready)

    def send(self, rows: np.ndarray, actions: Any) -> None:
        """Begin a step of columns ``rows`` ``[n]``, and let opponents move as long as they can."""
        table, merged = self._table, self._actions
        columns = table.columns[rows]
        tree.map_leaves(lambda to, x: to.__setitem__(columns, x), merged, actions)
        self._waits[rows] = True
        ready = [self._ready]
        while True:
            columns = np.union1d(columns, self._restarted())
            columns = np.union1d(columns, self._frozen_moves())
            columns = columns[~self._busy[columns]]
            if not len(columns):
                break
            self._busy[columns] = True
            actions_of_columns = tree.map_leaves(lambda x, columns=columns: x[columns], merged)
            self.games.send(columns, actions_of_columns)
            done = self._keep(self.games.receive())
            mine = np.flatnonzero(self._waits & np.isin(table.columns, done))
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
        return self.games.results(self._table.columns[rows])

    def infos(self, rows: np.ndarray, only: str | None = None) -> dict[str, Any]:
        """Return masks of all columns, ``[N, ...]``."""
        game_infos, own = self.games.infos(rows), self._table.columns
        mask = info_mask(game_infos)
        infos = {} if mask is None else {MASK: mask[own]}
        if only is None and AGENT_INFOS in game_infos:
            infos[AGENT_INFOS] = [game_infos[AGENT_INFOS][i] for i in own.tolist()]
        return infos

    def render(self) -> Any:
        """Render the games."""
        return self.games.render()

    def close_extras(self, **kwargs: Any) -> None:
        """Close the games and write their results."""
        self._draw.close()
        self._frozen.close()
        self.games.close(**kwargs)

    def _restarted(self) -> np.ndarray:
        """Return the columns of games that restart because the learner began a step after their
        end.
        """
        table = self._table
        waiting = table.columns[self._waits] // table.shape[1]
        begins = self._over & np.isin(np.arange(table.shape[0]), waiting)
        table.begin(begins)
        self._over &= ~begins
        all_trained = np.repeat(begins, table.shape[1])
        all_trained[table.columns[~self._waits]] = False  # these games restart on their own
        return np.flatnonzero(all_trained)

    def _frozen_moves(self) -> np.ndarray:
        """Choose the actions of the opponents to move, and return their columns."""
        others = self._table.others
        others = others[~self._busy[others] & ~self._over[others // self._table.shape[1]]]
        acting = others[~self._gone[others]]
        if len(acting):
            everyone = np.arange(self.games.num_envs)
            obs, mask = self.games.results(everyone)[0], info_mask(self.games.infos(everyone))
            inputs = obs, mask, self._reward, self._first
            self._frozen.act(self._table.players(acting), acting, inputs)
            theirs = tree.map_leaves(lambda x: x[acting], self._frozen.actions)
            tree.map_leaves(lambda to, x: to.__setitem__(acting, x), self._actions, theirs)
        return others

    def _keep(self, done: np.ndarray) -> np.ndarray:
        """Store the results of finished steps of the games' columns; return these columns."""
        table = self._table
        _, reward, terminated, truncated = self.games.results(done)
        self._busy[done] = False
        self._first[done] = self._gone[done]
        self._gone[done] = terminated | truncated
        self._reward[done] = np.where(self._first[done], 0.0, reward)
        np.add.at(table.totals.ravel(), done, self._reward[done])
        over = self.games.over & ~self._over
        table.note(over)
        self._over |= over
        return done

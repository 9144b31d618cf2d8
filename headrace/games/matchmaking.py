"""Assigns the seats of games to the learner and its opponents."""

from __future__ import annotations

import numpy as np

from headrace.errors import CheckpointError, ConfigError
from headrace.games.frozen_opponents import FrozenOpponents
from headrace.games.league_folder import Snapshot
from headrace.games.opponent_mix import OpponentMix
from headrace.games.opponent_sampling import OpponentSampler


class Matchmaking:
    """Seats of games: first the games whose seats are all the learner's, then those with one.

    Args:
        num_columns: number of the learner's columns.
        num_agents: number of agents of a game.
        mixture: mixture of opponents.
        frozen: frozen policies that play the opponents.
        draw: sampler of opponents.

    Attributes:
        shape: numbers of games and agents.
        columns: ``[N]``, the learner's current columns.
        others: ``[M]``, the opponents' columns.
    """

    def __init__(
        self,
        num_columns: int,
        num_agents: int,
        mixture: OpponentMix,
        frozen: FrozenOpponents,
        draw: OpponentSampler,
    ) -> None:
        both, alone = mixture.games(num_columns, num_agents)
        self.shape = both + alone, num_agents
        self._frozen, self._draw = frozen, draw
        self._alone = np.arange(both, both + alone)  # games with one seat of the learner's
        self._trained = np.arange(both * num_agents)  # columns of the other games
        self.seats, self.opponents = np.zeros(alone, np.int64), list[Snapshot]()
        self._assign_columns()

    def reset(self) -> None:
        """Begin all games."""
        self.seats = self._alone % self.shape[1]
        self._assign_columns()
        self.opponents = self._sample(len(self._alone))
        self._frozen.keep({one.name for one in self.opponents})

    def _assign_columns(self) -> None:
        own = np.concatenate([self._trained, self._alone * self.shape[1] + self.seats])
        self.columns, everyone = own, np.arange(self.shape[0] * self.shape[1])
        self.others = np.setdiff1d(everyone, own)

    def players(self, columns: np.ndarray) -> list[Snapshot]:
        """Return the player of each of some opponents' columns."""
        before = self.shape[0] - len(self._alone)
        return [self.opponents[g - before] for g in (columns // self.shape[1]).tolist()]

    def begin(self, games: np.ndarray) -> None:
        """Begin games ``[G]``: move the learner to the next seat and sample an opponent."""
        new = np.flatnonzero(games[self._alone])
        if len(new):
            self.seats[new] = (self.seats[new] + 1) % self.shape[1]
            self._assign_columns()
            for i, opponent in zip(new.tolist(), self._sample(len(new)), strict=True):
                self.opponents[i] = opponent
            self._frozen.keep({one.name for one in self.opponents})

    def note(self, over: np.ndarray, totals: np.ndarray) -> None:
        """Record whether the learner beat the mean return of the other seats.

        Args:
            over: ``[G]`` bool, finished games.
            totals: ``[G, n]``, their returns.
        """
        for i in np.flatnonzero(over[self._alone]).tolist():
            returns = totals[self._alone[i]]
            own = returns[self.seats[i]]
            others = (returns.sum() - own) / (len(returns) - 1)
            self._draw.note(self.opponents[i], 0.5 * (1.0 + np.sign(own - others)))

    def _sample(self, count: int) -> list[Snapshot]:
        """Sample opponents, and load their policies."""
        return [self._loaded(one) for one in self._draw.opponents(count)]

    def _loaded(self, one: Snapshot) -> Snapshot:
        while True:
            try:
                self._frozen.policy(one)
            except (CheckpointError, ConfigError) as error:
                one = self._draw.another(one, error)
            else:
                return one

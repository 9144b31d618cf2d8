"""Who sits where: which columns of some games are the learner's, and who plays the others."""

from __future__ import annotations

import numpy as np

from headrace.errors import CheckpointError, ConfigError
from headrace.league.folder import Snapshot
from headrace.league.frozen_opponents import FrozenOpponents
from headrace.league.opponent_mix import OpponentMix
from headrace.league.opponent_sampling import OpponentSampler


class Matchmaking:
    """Games of which every seat is the learner's, then those of which one is.

    Args:
        num_columns: of the learner. num_agents: of a game. mixture: of opponents.
        frozen: what plays for them. draw: of them.

    Attributes:
        shape: games and agents. totals: ``[games, agents]`` returns so far.
        columns: ``[N]``, which of the games' columns are the learner's now.
        others: ``[M]``, those that opponents play.
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
        self.shape, self.totals = (both + alone, num_agents), np.zeros((both + alone, num_agents))
        self._frozen, self._draw = frozen, draw
        self._alone = np.arange(both, both + alone)  # games of which one seat is the learner's
        self._trained = np.arange(both * num_agents)  # columns of the others
        self.seats, self.opponents = np.zeros(alone, np.int64), list[Snapshot]()
        self._sit()

    def reset(self) -> None:
        """Begin all games."""
        self.totals[:] = 0.0
        self.seats = self._alone % self.shape[1]
        self._sit()
        self.opponents = self._drawn(len(self._alone))
        self._frozen.keep({one.name for one in self.opponents})

    def _sit(self) -> None:
        own = np.concatenate([self._trained, self._alone * self.shape[1] + self.seats])
        self.columns, everyone = own, np.arange(self.shape[0] * self.shape[1])
        self.others = np.setdiff1d(everyone, own)

    def players(self, columns: np.ndarray) -> list[Snapshot]:
        """Who plays each of some of the others."""
        before = self.shape[0] - len(self._alone)
        return [self.opponents[g - before] for g in (columns // self.shape[1]).tolist()]

    def begin(self, games: np.ndarray) -> None:
        """Some games ``[G]`` begin: the next seat is the learner's, and an opponent is drawn."""
        self.totals[games] = 0.0
        new = np.flatnonzero(games[self._alone])
        if len(new):
            self.seats[new] = (self.seats[new] + 1) % self.shape[1]
            self._sit()
            for i, opponent in zip(new.tolist(), self._drawn(len(new)), strict=True):
                self.opponents[i] = opponent
            self._frozen.keep({one.name for one in self.opponents})

    def note(self, over: np.ndarray) -> None:
        """What games ``[G]`` that are over came to, by the mean return of the other seats."""
        for i in np.flatnonzero(over[self._alone]).tolist():
            totals = self.totals[self._alone[i]]
            own = totals[self.seats[i]]
            others = (totals.sum() - own) / (len(totals) - 1)
            self._draw.note(self.opponents[i], 0.5 * (1.0 + np.sign(own - others)))

    def _drawn(self, count: int) -> list[Snapshot]:
        """So many opponents, all of which are loaded."""
        found = self._draw.opponents(count)
        return [self._loaded(one) for one in found]

    def _loaded(self, one: Snapshot) -> Snapshot:
        while True:
            try:
                self._frozen.policy(one)
            except (CheckpointError, ConfigError) as error:
                one = self._draw.another(one, error)
            else:
                return one

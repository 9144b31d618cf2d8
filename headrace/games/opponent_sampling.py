"""Samples opponents and records the results of games against them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headrace.errors import CheckpointError, ConfigError
from headrace.games.frozen_opponents import Load
from headrace.games.league_folder import Games, LeagueView, Snapshot, newest
from headrace.games.opponent_mix import NAIVE, OpponentMix, probabilities


@dataclass(frozen=True)
class SeatAssignment:
    """Seat assignment of a run's games, as needed by its actors.

    Attributes:
        mixture: mixture of opponents.
        load: reads the policy of a snapshot's folder.
        league: the league's folder; None with a ``rival``.
        run: the run's name in the league.
        rival: the exploited opponent, the only one of an exploiter.
    """

    mixture: OpponentMix
    load: Load
    league: Path | None = None
    run: str = ""
    rival: Snapshot | None = None

    def num_games(self, num_columns: int, num_agents: int) -> int:
        """Return the number of games for a number of trained columns."""
        return sum(self.mixture.games(num_columns, num_agents))


class OpponentSampler:
    """Samples opponents from a league and records the results of games."""

    def __init__(self, seating: SeatAssignment, writer: str) -> None:
        self._seating, self.load = seating, seating.load
        self._rng = np.random.default_rng()
        self._unreadable = set[str]()  # names of unreadable snapshots
        self._view = self._games = None
        if seating.league is not None:
            self._view = LeagueView(seating.league, seating.run)
            self._games = Games(seating.league, seating.run, writer)

    def seed(self, seed: int | None) -> None:
        """Seed the sampling and discard unwritten results."""
        self._rng = np.random.default_rng(seed)
        if self._games is not None:
            self._games.drop()

    def opponents(self, count: int) -> list[Snapshot]:
        """Sample ``count`` opponents for new games."""
        if count == 0:  # every seat may be the learner's
            return []
        if self._seating.rival is not None:
            return [self._seating.rival] * count
        view = self._view
        assert view is not None
        view.refresh()
        kinds, shares = zip(*self._seating.mixture.frozen, strict=True)
        return [self._of(kinds[k]) for k in self._rng.choice(len(kinds), count, p=shares)]

    def _of(self, kind: str) -> Snapshot:
        view = self._view
        assert view is not None
        readable = [one for one in view.snapshots if one.name not in self._unreadable]
        if kind == NAIVE:
            own = [one for one in readable if one.run == self._seating.run]
            return newest(own) if own else readable[-1]
        rates = np.array([view.standings.win_rate(one.name) for one in readable])
        at = self._rng.choice(len(rates), p=probabilities(kind, rates))
        return readable[int(at)]

    def another(self, unreadable: Snapshot, error: CheckpointError | ConfigError) -> Snapshot:
        """Replace an unreadable opponent, which isn't sampled again.

        Raises:
            CheckpointError, ConfigError: ``error``, if there is no other.
        """
        view = self._view
        self._unreadable.add(unreadable.name)
        if view is None or self._unreadable.issuperset(one.name for one in view.snapshots):
            raise error
        return self.opponents(1)[0]

    def note(self, opponent: Snapshot, score: float) -> None:
        """Record a finished game: 1 for a win of the learner, 0.5 for a draw, 0 for a loss."""
        if self._games is not None:
            self._games.add(opponent.name, score)

    def close(self) -> None:
        """Write the unwritten games."""
        if self._games is not None:
            self._games.flush()

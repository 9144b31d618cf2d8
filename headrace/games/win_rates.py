"""Win rates of a run against snapshots, with exponential decay of old games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

DECAY = 0.99  # decay of an opponent's record per game, as in AlphaStar's published pay-offs
UNKNOWN = 0.5  # win rate before the first game


class Record(NamedTuple):
    """Decayed games against one opponent; a score is 1 for a win, 0.5 for a draw, 0 for a loss."""

    weight: float = 0.0  # decayed number of games
    score: float = 0.0  # decayed sum of their scores
    games: int = 0

    @property
    def win_rate(self) -> float:
        """Win rate between 0 and 1."""
        return self.score / self.weight if self.weight else UNKNOWN

    def after(self, games: int, score: float) -> Record:
        """Return the record after more games with this total score, each counted as their mean."""
        remaining = DECAY**games
        weight = (1.0 - remaining) / (1.0 - DECAY)
        mean = score / games
        return Record(remaining * self.weight + weight, remaining * self.score + weight * mean,
                      self.games + games)  # fmt: skip


class WinRates:
    """A run's records by opponent."""

    def __init__(self, records: Mapping[str, Sequence[float]] | None = None) -> None:
        self.records = {
            name: Record(float(one[0]), float(one[1]), int(one[2]))
            for name, one in (records or {}).items()
        }

    def add(self, games: Mapping[str, Sequence[float]]) -> int:
        """Add games by opponent, ``(number, total score)``; return the total number."""
        for name, (count, score) in games.items():
            self.records[name] = self.records.get(name, Record()).after(int(count), float(score))
        return int(sum(count for count, _ in games.values()))

    def win_rate(self, opponent: str) -> float:
        """Return the win rate against one opponent."""
        return self.records.get(opponent, Record()).win_rate

    def to_json(self) -> dict[str, Any]:
        """Return the constructor's arguments as JSON values."""
        return {name: list(record) for name, record in self.records.items()}

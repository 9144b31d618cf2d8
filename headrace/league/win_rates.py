"""What a run's games against snapshots came to: win rates that forget old games."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

DECAY = 0.99  # of an opponent's record by each further game, as in AlphaStar's published pay-offs
UNKNOWN = 0.5  # the win rate against whom no game was played


class Record(NamedTuple):
    """Games against one opponent; a score is 1 for a win, 0.5 for a draw, 0 for a loss."""

    weight: float = 0.0  # of the games, the older the less
    score: float = 0.0  # the sum of theirs, likewise
    games: int = 0

    @property
    def win_rate(self) -> float:
        """Between 0 and 1."""
        return self.score / self.weight if self.weight else UNKNOWN

    def after(self, games: int, score: float) -> Record:
        """With so many more games, of such a score in sum, as if each had the mean of it."""
        kept = DECAY**games
        weight = (1.0 - kept) / (1.0 - DECAY)
        mean = score / games
        return Record(kept * self.weight + weight, kept * self.score + weight * mean,
                      self.games + games)  # fmt: skip


class WinRates:
    """A run's records by opponent."""

    def __init__(self, records: Mapping[str, Sequence[float]] | None = None) -> None:
        self.records = {
            name: Record(float(one[0]), float(one[1]), int(one[2]))
            for name, one in (records or {}).items()
        }

    def add(self, games: Mapping[str, Sequence[float]]) -> int:
        """Take in games by opponent, ``(how many, their score)``; returns how many in all."""
        for name, (count, score) in games.items():
            self.records[name] = self.records.get(name, Record()).after(int(count), float(score))
        return int(sum(count for count, _ in games.values()))

    def win_rate(self, opponent: str) -> float:
        """Against one opponent."""
        return self.records.get(opponent, Record()).win_rate

    def to_json(self) -> dict[str, Any]:
        """What the constructor takes."""
        return {name: list(record) for name, record in self.records.items()}

"""A league: a folder that several runs may share, as who plays in it reads it.

    league/league.json                       the game: its name, arguments, agents and spaces
    league/snapshots/<run>-<steps>/          policy.safetensors, config.json
    league/snapshots/<run>~1-<steps>/        of a run that went on behind some that others play
    league/runs/<run>/standings.json         the run's win rates, replaced now and then
    league/runs/<run>/games-<writer>.jsonl   its games, a line for a few, only added to
    league/matches/<name>.json               games of snapshots against each other

Every file has one writer, or is written once under another name and then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.league.win_rates import WinRates

GAME, SNAPSHOT, STANDINGS = "league.json", "snapshot.json", "standings.json"
SNAPSHOTS, RUNS, MATCHES = "snapshots", "runs", "matches"


class Snapshot(NamedTuple):
    """A frozen policy of a league, or anywhere else."""

    name: str
    path: Path
    run: str
    step: int  # environment steps that its run had trained
    branch: int = 0  # how often its run left snapshots behind, before this one


def snapshots(league: Path) -> list[Snapshot]:
    """Those of a league, by run and step; what is being written isn't there yet."""
    found = []
    for entry in os.scandir(league / SNAPSHOTS):
        run, dash, step = entry.name.rpartition("-")
        run, _, branch = run.partition("~")
        if dash and step.isdigit() and not entry.name.startswith("."):
            number = int(branch) if branch.isdigit() else 0
            found.append(Snapshot(entry.name, Path(entry.path), run, int(step), number))
    return sorted(found, key=lambda one: (one.step, one.run, one.branch))


def newest(of_run: Sequence[Snapshot]) -> Snapshot:
    """Of one run's: that with the most steps since the run went on for the last time."""
    return max(of_run, key=lambda one: (one.branch, one.step))


def standings(league: Path, run: str) -> WinRates:
    """A run's, as they were written last."""
    try:
        text = (league / RUNS / run / STANDINGS).read_text(encoding="utf-8")
    except FileNotFoundError:
        return WinRates()
    return WinRates(json.loads(text))


class LeagueView:
    """A league as one run sees it, read again once something has changed."""

    def __init__(self, league: Path, run: str) -> None:
        self._league, self._run = league, run
        self._seen: tuple[float, ...] = ()
        self.snapshots: list[Snapshot] = []
        self.standings = WinRates()

    def refresh(self) -> None:
        """Read what is new, if anything is."""
        seen = self._state()
        if seen != self._seen:
            self.snapshots = snapshots(self._league)
            self.standings = standings(self._league, self._run)
            self._seen = seen

    def _state(self) -> tuple[float, ...]:
        """What differs once the folder or the file was written anew."""
        folder = os.stat(self._league / SNAPSHOTS)
        try:
            file = os.stat(self._league / RUNS / self._run / STANDINGS)
        except FileNotFoundError:
            return (folder.st_mtime_ns,)
        return (folder.st_mtime_ns, file.st_mtime_ns, file.st_ino)


class Games:
    """Adds to the games of a run, from one process: lines of how many there were, and their score.

    Args:
        name: of the file, which nobody else writes to.
    """

    def __init__(self, league: Path, run: str, name: str) -> None:
        self.path = league / RUNS / run / f"games-{name}.jsonl"
        self._new: dict[str, list[float]] = {}
        self._count = 0

    def add(self, opponent: str, score: float) -> None:
        """A game against a snapshot: 1 for a win, 0.5 for a draw, 0 for a loss."""
        record = self._new.setdefault(opponent, [0, 0.0])
        record[0] += 1
        record[1] += score
        self._count += 1
        if self._count >= GAMES_PER_LINE:
            self.flush()

    def drop(self) -> None:
        """Forget what isn't written yet, as a run that is resumed does."""
        self._new, self._count = {}, 0

    def flush(self) -> None:
        """Write what isn't written yet; what the disk refuses is kept, and written later."""
        self._count = 0
        if self._new:
            with contextlib.suppress(OSError):
                self._write((json.dumps(self._new) + "\n").encode())
                self.drop()

    def _write(self, line: bytes) -> None:
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(file.fileno(), before)  # no line is there in part
                raise


GAMES_PER_LINE = 16

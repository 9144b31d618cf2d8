"""Reads and writes a league's folder, which several runs may share.

    league/league.json                       the game: its name, arguments, agents and spaces
    league/snapshots/<run>-<steps>/          policy.safetensors, config.json
    league/snapshots/<run>~1-<steps>/        of a run resumed from before a published snapshot
    league/runs/<run>/standings.json         the run's win rates, rewritten periodically
    league/runs/<run>/owner.json             the run directory that plays as this run
    league/runs/<run>/games-<writer>.jsonl   its games, append-only
    league/matches/<name>.json               games of snapshots against each other

Every file has one writer, or is written once under another name and then renamed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from headrace.errors import CheckpointError
from headrace.games.win_rates import WinRates
from headrace.processes import safe_files

GAME, STANDINGS = "league.json", "standings.json"
SNAPSHOTS, RUNS, MATCHES = "snapshots", "runs", "matches"
_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9._-]*)(?:~([0-9]{1,9}))?-([0-9]{1,18})")


class Snapshot(NamedTuple):
    """A frozen policy of a league or another run."""

    name: str
    path: Path
    run: str
    step: int  # environment steps that its run had trained
    branch: int = 0  # number of earlier snapshots that its run discarded by resuming


def snapshots(league: Path) -> list[Snapshot]:
    """Return a league's snapshots by run and step, without incomplete ones.

    Raises:
        CheckpointError: their folder is a link or a file.
    """
    entries, names = list[Snapshot](), list[str]()
    try:
        with safe_files.folder(league / SNAPSHOTS, league) as folder, os.scandir(folder) as listed:
            names = [entry.name for entry in listed if entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        pass
    except OSError as error:
        raise CheckpointError(f"{league / SNAPSHOTS} can't be read: {error}") from error
    for name in names:
        if match := _NAME.fullmatch(name):
            run, branch, step = match[1], int(match[2] or 0), int(match[3])
            entries.append(Snapshot(name, league / SNAPSHOTS / name, run, step, branch))
    return sorted(entries, key=lambda one: (one.step, one.run, one.branch))


def newest(of_run: Sequence[Snapshot]) -> Snapshot:
    """Return the newest of one run's snapshots: most steps since the latest resume."""
    return max(of_run, key=lambda one: (one.branch, one.step))


def standings(league: Path, run: str) -> WinRates:
    """Return a run's latest written win rates."""
    try:
        return WinRates(safe_files.read_json(league / RUNS / run / STANDINGS, league))
    except FileNotFoundError:
        return WinRates()


class LeagueView:
    """One run's view of a league, re-read after changes."""

    def __init__(self, league: Path, run: str) -> None:
        self._league, self._run = league, run
        self._seen: tuple[float, ...] = ()
        self.snapshots: list[Snapshot] = []
        self.standings = WinRates()

    def refresh(self) -> None:
        """Re-read what has changed."""
        state = self._state()
        if state != self._seen:
            self.snapshots = snapshots(self._league)
            self.standings = standings(self._league, self._run)
            self._seen = state

    def _state(self) -> tuple[float, ...]:
        """Return a value that changes whenever the folder or the file is rewritten."""
        folder = os.stat(self._league / SNAPSHOTS)
        try:
            file = os.stat(self._league / RUNS / self._run / STANDINGS)
        except FileNotFoundError:
            return (folder.st_mtime_ns,)
        return (folder.st_mtime_ns, file.st_mtime_ns, file.st_ino)


class Games:
    """Appends games of a run from one process; each line holds their number and score.

    Args:
        name: name of the file, which has no other writer.
    """

    def __init__(self, league: Path, run: str, name: str) -> None:
        self._league, self.path = league, league / RUNS / run / f"games-{name}.jsonl"
        self._new: dict[str, list[float]] = {}
        self._count = 0

    def add(self, opponent: str, score: float) -> None:
        """Record a game against a snapshot: 1 for a win, 0.5 for a draw, 0 for a loss."""
        record = self._new.setdefault(opponent, [0, 0.0])
        record[0] += 1
        record[1] += score
        self._count += 1
        if self._count >= GAMES_PER_LINE:
            self.flush()

    def drop(self) -> None:
        """Discard unwritten games, as a resumed run does."""
        self._new, self._count = {}, 0

    def flush(self) -> None:
        """Write unwritten games; after a failed write they are kept for the next attempt."""
        self._count = 0
        if self._new:
            with contextlib.suppress(OSError):
                self._write((json.dumps(self._new) + "\n").encode())
                self.drop()

    def _write(self, line: bytes) -> None:
        with safe_files.appended(self.path, self._league) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            except OSError:
                os.ftruncate(file.fileno(), before)  # the line isn't partially written
                raise


GAMES_PER_LINE = 16

"""Writes in a league's folder (see ``headrace/games/league_folder.py``), which runs may share.

No locks are needed: a file has one writer, or appears whole and never changes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, ConfigError
from headrace.games.league_folder import (
    GAME,
    MATCHES,
    RUNS,
    SNAPSHOTS,
    STANDINGS,
    Snapshot,
    snapshots,
)
from headrace.processes import safe_files
from headrace.rundir import folders
from headrace.rundir.atomic_files import (
    checkpoint_errors,
    json_text,
    replace_text,
    write_hashed,
)
from headrace.rundir.folders import Files

FORMAT = 1
Offsets = dict[str, int]  # by file of games: bytes read so far


def create(league: Path, game: Mapping[str, Any]) -> None:
    """Create a league of this game, unless it exists.

    Args:
        game: ``env``, ``env_kwargs``, ``agents`` and spaces of the game, as plain values.

    Raises:
        ConfigError: it is a league of another game.
        CheckpointError: the folder can't be written.
    """
    check(league, game)
    if safe_files.is_file(league / GAME):
        return
    with checkpoint_errors(league):
        for name in (SNAPSHOTS, RUNS, MATCHES):
            league.mkdir(parents=True, exist_ok=True)
            safe_files.make_folder(league / name, league)
        fresh = league / f"{GAME}.{secrets.token_hex(4)}.tmp"
        values = {"format": FORMAT, "game": dict(game)}
        try:
            write_hashed(fresh, lambda file: file.write(json_text(values).encode()))
            safe_files.publish(fresh, league / GAME)
        except FileExistsError:
            pass  # another run was faster
        finally:
            safe_files.remove(fresh)
    check(league, game)


def check(league: Path, game: Mapping[str, Any]) -> None:
    """Raise ConfigError if the folder is something else than a league of this game."""
    if not league.exists() or (league.is_dir() and not _is_begun(league)):
        return
    theirs, ours = game_of(league), json.loads(json_text(dict(game)))
    for name, value in ours.items():
        if theirs.get(name) != value:
            raise ConfigError(
                f"league={str(league)!r} belongs to another game: its {name.replace('_', ' ')} is "
                f"{_brief(theirs.get(name))}, this run's is {_brief(value)}; choose another folder"
            )


def _is_begun(league: Path) -> bool:
    """Return True if the folder has more than the start of another run's league."""
    for one in league.iterdir():
        half = one.name.startswith(f"{GAME}.") and one.suffix == ".tmp"
        folder = one.name in (SNAPSHOTS, RUNS, MATCHES) and one.is_dir()
        if not half and not (folder and not any(one.iterdir())):
            return True
    return False


def game_of(league: Path) -> dict[str, Any]:
    """Return the game of a league.

    Raises:
        ConfigError: it is not a league.
    """
    try:
        values = safe_files.read_json(league / GAME)
        if values["format"] != FORMAT:
            raise ValueError(f"format {values['format']}, but this version reads {FORMAT}")
        return dict(values["game"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            f"league={str(league)!r} is not a league ({GAME}: {error}); use a run with opponents, "
            "a league's folder, or a new folder"
        ) from error


def _brief(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 80 else f"{text[:60]} … {text[-15:]}"


def join(league: Path, name: str) -> str:
    """Reserve a unique name in the league for a run: ``name``, or ``name`` with a number."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".-") or "run"
    with checkpoint_errors(league):
        for number in range(1, 10_000):
            candidate = name if number == 1 else f"{name}-{number}"
            try:
                safe_files.make_folder(league / RUNS / candidate, league, exist_ok=False)
            except FileExistsError:
                continue
            return candidate
    raise CheckpointError(f"{league} has 9,999 runs named {name}: choose another run_dir")


def add(league: Path, run: str, step: int, files: Files, branch: int = 0) -> Snapshot:
    """Add a new snapshot atomically.

    Args:
        files: files of a saved policy.
        branch: see :class:`Snapshot`.

    Raises:
        CheckpointError: the snapshot can't be written.
    """
    name = f"{run}~{branch}-{step}" if branch else f"{run}-{step}"
    target = league / SNAPSHOTS / name
    temporary = target.with_name(f".{target.name}.tmp")
    with checkpoint_errors(target):
        folders.discard(temporary, league)
        folders.write_files(temporary, files, league)
        try:
            safe_files.replace(temporary, target, league)
        except OSError:
            folders.discard(temporary, league)
            raise
        safe_files.sync(target.parent, league)
    return Snapshot(target.name, target, run, step, branch)


def behind(league: Path, latest: Snapshot) -> list[Snapshot]:
    """List snapshots that a run took after this one."""
    return [
        one
        for one in snapshots(league)
        if one.run == latest.run and (one.branch, one.step) > (latest.branch, latest.step)
    ]


def remove(league: Path, lost: Iterable[Snapshot]) -> None:
    """Delete snapshots, each atomically."""
    for one in lost:
        aside = one.path.with_name(f".{one.name}.gone")
        with checkpoint_errors(one.path):
            safe_files.replace(one.path, aside, league)
        folders.discard(aside, league)


def rewind_games(league: Path, run: str, offsets: Offsets) -> None:
    """Remove a run's games after a checkpoint, which had read up to ``offsets``."""
    with checkpoint_errors(league):
        for file in (league / RUNS / run).glob("games-*.jsonl"):
            if file.lstat().st_size > offsets.get(file.name, 0):
                safe_files.truncate(file, offsets.get(file.name, 0), league)


def new_games(league: Path, run: str, offsets: Offsets) -> dict[str, tuple[int, float]]:
    """Return a run's new games by opponent: number and total score since the last call.

    An incomplete line is left for the next call.

    Args:
        offsets: advanced in place.

    Raises:
        CheckpointError: a file can't be read; offsets are unchanged.
    """
    games: dict[str, tuple[int, float]] = {}
    moved = Offsets()
    for file in sorted((league / RUNS / run).glob("games-*.jsonl")):
        at = offsets.get(file.name, 0)
        most = safe_files.machine_bytes()
        with checkpoint_errors(file, "read"), safe_files.opened(file, most, league) as opened:
            if os.fstat(opened.fileno()).st_size <= at:
                continue
            opened.seek(at)
            whole = opened.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            try:
                _add_games(games, line)
            except (ValueError, TypeError, AttributeError, OverflowError) as error:
                raise CheckpointError(
                    f"{file} contains lines that are not games ({error})"
                ) from None
        moved[file.name] = at + len(whole) + bool(whole)
    offsets.update(moved)
    return games


def _add_games(games: dict[str, tuple[int, float]], line: bytes) -> None:
    for name, (count, score) in safe_files.parse_json(line).items():
        if not 0 < count < 2**53 or not 0 <= score <= count:
            raise ValueError(f"{count} games with a score of {score}")
        before = games.get(name, (0, 0.0))
        games[name] = before[0] + int(count), before[1] + float(score)


def write_standings(league: Path, run: str, values: dict[str, Any]) -> None:
    """Replace a run's win rates."""
    path = league / RUNS / run / STANDINGS
    with checkpoint_errors(path):
        replace_text(path, json_text(values), league)


def write_match(league: Path, values: dict[str, Any]) -> Path:
    """Save the result of games between two snapshots; return the file."""
    path = league / MATCHES / f"{secrets.token_hex(8)}.json"
    with checkpoint_errors(path):
        safe_files.make_folder(league / MATCHES, league)
        replace_text(path, json_text(values), league)
    return path


def match_files(league: Path) -> list[Path]:
    """List the files of all matches, by name."""
    return sorted((league / MATCHES).glob("*.json"))

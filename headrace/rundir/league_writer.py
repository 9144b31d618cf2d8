"""Writes in a league's folder (see ``headrace/games/league_folder.py``), which runs may share.

No locks are needed: a file has one writer, or appears whole and never changes.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import shutil
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
from headrace.rundir import checksums
from headrace.rundir.atomic_files import (
    checkpoint_errors,
    json_text,
    replace_text,
    sync,
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
    if (league / GAME).exists():
        return
    with checkpoint_errors(league):
        for name in (SNAPSHOTS, RUNS, MATCHES):
            (league / name).mkdir(parents=True, exist_ok=True)
        fresh = league / f"{GAME}.{secrets.token_hex(4)}.tmp"
        values = {"format": FORMAT, "game": dict(game)}
        try:
            write_hashed(fresh, lambda file: file.write(json_text(values).encode()))
            os.link(fresh, league / GAME)
        except FileExistsError:
            pass  # another run was faster
        finally:
            fresh.unlink(missing_ok=True)
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
        values = json.loads((league / GAME).read_text(encoding="utf-8"))
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
    name = re.sub(r"[^A-Za-z0-9._-]", "_", name).lstrip(".") or "run"
    with checkpoint_errors(league):
        for number in range(1, 10_000):
            candidate = name if number == 1 else f"{name}-{number}"
            try:
                (league / RUNS / candidate).mkdir()
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
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            hashes = {file: write_hashed(temporary / file, how) for file, how in files.items()}
            text = checksums.text(hashes).encode()
            write_hashed(temporary / checksums.NAME, lambda file: file.write(text))
            sync(temporary)
            os.rename(temporary, target)
        except OSError:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(target.parent)
    return Snapshot(target.name, target, run, step, branch)


def behind(league: Path, latest: Snapshot) -> list[Snapshot]:
    """List snapshots that a run took after this one."""
    return [
        one
        for one in snapshots(league)
        if one.run == latest.run and (one.branch, one.step) > (latest.branch, latest.step)
    ]


def remove(lost: Iterable[Snapshot]) -> None:
    """Delete snapshots, each atomically."""
    for one in lost:
        aside = one.path.with_name(f".{one.name}.gone")
        with checkpoint_errors(one.path):
            os.rename(one.path, aside)
            shutil.rmtree(aside, ignore_errors=True)


def rewind_games(league: Path, run: str, offsets: Offsets) -> None:
    """Remove a run's games after a checkpoint, which had read up to ``offsets``."""
    with checkpoint_errors(league):
        for file in (league / RUNS / run).glob("games-*.jsonl"):
            if file.stat().st_size > offsets.get(file.name, 0):
                os.truncate(file, offsets.get(file.name, 0))


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
        with checkpoint_errors(file, "read"):
            if file.stat().st_size <= at:
                continue
            with file.open("rb") as opened:
                opened.seek(at)
                whole = opened.read().rpartition(b"\n")[0]
        for line in whole.splitlines():
            for name, (count, score) in json.loads(line).items():
                before = games.get(name, (0, 0.0))
                games[name] = before[0] + int(count), before[1] + float(score)
        moved[file.name] = at + len(whole) + bool(whole)
    offsets.update(moved)
    return games


def write_standings(league: Path, run: str, values: dict[str, Any]) -> None:
    """Replace a run's win rates."""
    path = league / RUNS / run / STANDINGS
    with checkpoint_errors(path):
        replace_text(path, json_text(values))


def write_match(league: Path, values: dict[str, Any]) -> Path:
    """Save the result of games between two snapshots; return the file."""
    path = league / MATCHES / f"{secrets.token_hex(8)}.json"
    with checkpoint_errors(path):
        (league / MATCHES).mkdir(exist_ok=True)
        replace_text(path, json_text(values))
    return path


def match_files(league: Path) -> list[Path]:
    """List the files of all matches, by name."""
    return sorted((league / MATCHES).glob("*.json"))

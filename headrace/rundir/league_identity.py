"""Records which run directory plays as which run of a league, to detect copies."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any

from headrace.games.league_folder import RUNS
from headrace.processes import safe_files
from headrace.rundir.atomic_files import checkpoint_errors, json_text, replace_text

OWNER = "owner.json"


def sign(league: Path, run: str, run_dir: Path) -> None:
    """Record that ``run_dir`` plays as ``run``.

    Raises:
        CheckpointError: the league can't be written.
    """
    path = league / RUNS / run / OWNER
    with checkpoint_errors(path):
        replace_text(path, json_text(_identity(run_dir)), league)


def is_copy(league: Path, run: str, run_dir: Path) -> bool:
    """Return True if another run directory plays as ``run``, so this one is a copy.

    A directory that was moved on its file system or restored at its path is not a copy. On another
    host, every directory is a copy, except on the same shared file system.
    """
    owner, ours = _owner(league, run), _identity(run_dir)
    if owner is None:
        return False
    if owner.get("host") != ours["host"]:
        return owner.get("inode") != ours["inode"]
    same = all(owner.get(key) == ours[key] for key in ("device", "inode"))
    path = str(owner.get("path"))
    return not same and path != ours["path"] and os.path.exists(path)


def run_of(league: Path, run_dir: Path) -> str | None:
    """Return the name under which this directory already plays; None if there is none."""
    ours = _identity(run_dir)
    for folder in sorted((league / RUNS).iterdir()):
        if _owner(league, folder.name) == ours:
            return folder.name
    return None


def _owner(league: Path, run: str) -> dict[str, Any] | None:
    with contextlib.suppress(OSError, ValueError, TypeError):
        return dict(safe_files.read_json(league / RUNS / run / OWNER, league))
    return None


def _identity(run_dir: Path) -> dict[str, Any]:
    path = run_dir.resolve()
    status = path.stat()
    values = {"path": str(path), "device": status.st_dev, "inode": status.st_ino}
    return {**values, "host": socket.gethostname()}

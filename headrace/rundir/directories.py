"""Creates, checks, locks and clears run directories.

runs/x/config.json              resolved settings and the two spaces
runs/x/metrics.jsonl            a line per result; TensorBoard events next to it
runs/x/evaluations.jsonl, iterations/
runs/x/returns.jsonl            training returns between results of the first updates
runs/x/warnings.jsonl           findings of the doctor
runs/x/env_changes.jsonl        changes that callbacks made to the environments
runs/x/machine.json             hardware and package versions
runs/x/summary.json, curve.png, report.html  at the end of a run
runs/x/checkpoints/             see headrace/rundir/checkpoint.py
runs/x/league/                  see headrace/games/league_folder.py, for runs with opponents
runs/x/lock                     held by the process that writes
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

from headrace.errors import CheckpointError, setting
from headrace.processes import safe_files
from headrace.rundir import checksums, lock
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.rundir.checkpoint import find
from headrace.rundir.lock import Lock

_FILES = [
    *(lock.NAME, "config.json", "summary.json", "metrics.jsonl", "evaluations.jsonl"),
    *("warnings.jsonl", "warnings.jsonl.tmp", "machine.json", "report.html"),
    *("machine.json.tmp", "report.html.tmp", "env_changes.jsonl", "env_changes.jsonl.tmp"),
    *("events.out.tfevents.*", "curve.png", "episode.mp4", "episode.gif", "*.json.tmp"),
    *("iterations/rank_*.jsonl", "iterations/rank_*.jsonl.tmp", "metrics.jsonl.tmp"),
    *(
        "returns.jsonl",
        "returns.jsonl.tmp",
        "evaluations.jsonl.tmp",
        "checkpoints/latest",
        "checkpoints/best",
        "checkpoints/*.tmp",
    ),
]
_BEGUN = (lock.NAME, "config.json.tmp")  # files of a run that died before it wrote anything
_FOLDERS = [
    "iterations", "checkpoints", "checkpoints/step_*", "checkpoints/best_*", "checkpoints/copy_*",
    "checkpoints/rival_*", "checkpoints/*.tmp",
    "checkpoints/latest", "checkpoints/best",  # in a copy of the run that followed links
]  # fmt: skip
_FILES += [
    f"{folder}/{name}" for folder in _FOLDERS[2:] for name in (*checksums.FILES, checksums.NAME)
]
_FOLDERS += ["league", *(f"league/{name}" for name in ("snapshots", "runs", "matches"))]
_FOLDERS += ["league/snapshots/*", "league/runs/*"]
_FILES += ["league/league.json", "league/league.png", "league/league.json.*.tmp"]
_FILES += [f"league/snapshots/*/{name}" for name in (*checksums.POLICY_FILES, checksums.NAME)]
_FILES += [f"league/runs/*/{name}" for name in ("standings.json*", "owner.json*", "games-*.jsonl")]
_FILES += ["league/matches/*.json", "league/matches/*.json.tmp"]


def check(run_dir: Path, resume: bool, overwrite: bool) -> None:
    """Check that a run can use this directory; changes nothing.

    Raises:
        CheckpointError: it can't be written to; it isn't empty and neither resume nor overwrite is
            set; overwrite would delete files that headrace didn't write; there is nothing to
            resume.
    """
    with checkpoint_errors(run_dir, "used as run_dir"):
        there = next(path for path in (run_dir, *run_dir.absolute().parents) if path.exists())
        if not there.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{there} is a file")
        if not os.access(there, os.W_OK | os.X_OK):
            read_only = os.statvfs(there).f_flag & os.ST_RDONLY
            raise OSError(*_reason(errno.EROFS if read_only else errno.EACCES))
        if os.statvfs(there).f_bavail == 0:
            raise OSError(*_reason(errno.ENOSPC))
        if resume:
            find(run_dir)
        elif run_dir.exists() and any(path.name not in _BEGUN for path in run_dir.iterdir()):
            if not overwrite:
                raise CheckpointError(
                    f"run_dir={str(run_dir)!r} exists already: continue it with "
                    f"{setting('resume')}, replace it with {setting('overwrite')}, or choose "
                    "another"
                )
            _check_ours(run_dir)


def prepare(run_dir: Path, resume: bool, overwrite: bool) -> Lock:
    """Create a run directory and return its lock, which is held.

    Raises:
        CheckpointError: see :func:`check`, or another process writes there.
    """
    lock_file = None
    with checkpoint_errors(run_dir, "used as run_dir"):
        try:
            if not os.path.lexists(
                run_dir / lock.NAME
            ):  # otherwise the lock's holder explains more
                check(run_dir, resume, overwrite)
                run_dir.mkdir(parents=True, exist_ok=True)
            lock_file = Lock(run_dir)
            check(run_dir, resume, overwrite)
            begin(run_dir, overwrite)
            lock_file.sign()
        except BaseException:
            if lock_file is not None:
                lock_file.release()
            raise
    return lock_file


def begin(run_dir: Path, overwrite: bool) -> None:
    """Create or clear a run directory, if the parent process holds the lock and has checked it."""
    with checkpoint_errors(run_dir, "used as run_dir"):
        run_dir.mkdir(parents=True, exist_ok=True)
        if overwrite:
            _clear(run_dir)


def default_run_dir(env_name: str, algo_name: str) -> Path:
    """Return ``runs/<environment>-<algorithm>-<time>``, plus a number if that exists."""
    name = re.sub(r"[/: \x00-\x1f\x7f-\x9f]", "-", env_name)
    first = Path("runs") / f"{name}-{algo_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return next(path for path in _numbered(first) if not path.exists())


def reserve(run_dir: Path) -> Path:
    """Create a default run directory, with another number if another run has created it."""
    with checkpoint_errors(run_dir, "used as run_dir"):
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        for path in _numbered(run_dir):
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                break
    return path


def _numbered(first: Path) -> Iterator[Path]:
    """Yield a path, and the same with the numbers 2, 3 …"""
    yield first
    yield from (first.with_name(f"{first.name}-{i}") for i in itertools.count(2))


def _reason(number: int) -> tuple[int, str]:
    return number, os.strerror(number)


def _check_ours(run_dir: Path) -> None:
    """Raise CheckpointError unless headrace wrote all files in a directory."""
    refused = f"so {setting('overwrite')} won't delete anything in run_dir={str(run_dir)!r}"
    try:
        values = safe_files.read_json(run_dir / "config.json")
        ours = isinstance(values["format"], int) and bool(values["config"]["env"])
    except (OSError, ValueError, KeyError, TypeError):
        ours = False
    if not ours:
        raise CheckpointError(
            f"it is not a run directory (no config.json from headrace), {refused}: choose another"
        )
    for path, is_ours in _walk(run_dir):
        if not is_ours:
            name = path.relative_to(run_dir)
            raise CheckpointError(f"headrace did not write {name}, {refused}: move it elsewhere")


def _walk(run_dir: Path) -> Iterator[tuple[Path, bool]]:
    """Yield all paths in a directory, contents before folders, and whether headrace wrote them.

    Links are not followed; ``latest`` and ``best`` may be links and count as files.
    """
    for folder, folders, files in os.walk(run_dir, topdown=False, followlinks=False):
        for name in sorted(files + folders):
            path = Path(folder, name)
            links = path.is_symlink()
            if links and (path.parent != run_dir / "checkpoints" or name not in ("latest", "best")):
                yield path, False
            else:
                patterns = _FOLDERS if path.is_dir() and not links else _FILES
                yield path, any(_matches(path.relative_to(run_dir), one) for one in patterns)


def _matches(path: Path, pattern: str) -> bool:
    parts = pattern.split("/")
    return len(path.parts) == len(parts) and all(map(fnmatchcase, path.parts, parts))


def _clear(run_dir: Path) -> None:
    """Delete headrace's files, config.json last, so that it remains a run directory until then."""
    retained = (run_dir / lock.NAME, run_dir / "config.json")
    for path, is_ours in _walk(run_dir):
        if is_ours and path not in retained:
            if path.is_dir() and not path.is_symlink():
                path.rmdir()
            else:
                path.unlink()
    retained[1].unlink(missing_ok=True)

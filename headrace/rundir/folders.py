"""Names, writes, finds and points to folders in ``checkpoints/``."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.rundir import checksums
from headrace.rundir.atomic_files import checkpoint_errors, sync, write_hashed

Files = dict[str, Callable[[Any], object]]  # by name: function that writes to an open file
_NAME = re.compile(r"([a-z]+)_(\d+)(?:-(\d+))?")


def write(folder: Path, name: str, files: Files) -> Path:
    """Write a new folder in ``folder`` with these files and checksums; return its path."""
    temporary = folder / f"{name}.tmp"
    with checkpoint_errors(temporary):
        folder.mkdir(exist_ok=True)
        for leftover in folder.glob("*.tmp"):
            _discard(leftover)
        temporary.mkdir()
        try:
            hashes = {file: write_hashed(temporary / file, how) for file, how in files.items()}
            text = checksums.text(hashes).encode()
            write_hashed(temporary / checksums.NAME, lambda file: file.write(text))
            sync(temporary)
            target = _unused(folder, name)
            os.replace(temporary, target)
        except OSError:
            _discard(temporary)
            raise
        sync(folder)
        sync(folder.parent)
    return target


def _unused(folder: Path, name: str) -> Path:
    """Return the path of ``name`` in ``folder``, with the next number if it exists."""
    same = [path for path in saved(folder, name.split("_")[0]) if _key(path)[0] == _key(name)[0]]
    return folder / (f"{name}-{_key(same[-1])[1] + 1}" if same else name)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _key(path: Path | str) -> tuple[int, int]:
    """Return the sort key of a checkpoint: its steps, and its number among those of this step."""
    match = _NAME.fullmatch(Path(path).name)
    assert match is not None
    return int(match[2]), int(match[3] or 1)


def steps_of(path: Path) -> int:
    """Return the environment steps of a checkpoint, from its name; 0 if unknown."""
    return _key(path)[0] if _NAME.fullmatch(path.name) else 0


def saved(folder: Path, kind: str = "step") -> list[Path]:
    """List the checkpoints in ``folder``, oldest first, without incomplete ones."""
    named = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("*_*")]
    checkpoints = [path for path, name in named if name and name[1] == kind and path.is_dir()]
    return sorted(checkpoints, key=_key)


def pointed(folder: Path, name: str) -> Path | None:
    """Return the target of ``name``, which may also be a link or a folder; None if missing."""
    pointer = folder / name
    if os.path.isfile(pointer):  # also False for names that are too long
        named = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if _NAME.fullmatch(named) is None:
            return None
        pointer = folder / named
    return pointer.resolve() if os.path.exists(pointer / "policy.safetensors") else None


def newest_whole(folder: Path, kind: str = "step", beside: Path | None = None) -> Path | None:
    """Return the latest checkpoint in ``folder`` that passes verification, except ``beside``."""
    others = (path for path in reversed(saved(folder, kind)) if path != beside)
    return next(filter(checksums.is_whole, others), None)

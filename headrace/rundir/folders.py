"""The folders in ``checkpoints/``: how they are named, written, found and pointed to."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.rundir import checksums
from headrace.rundir.atomic_files import sync, told, write_hashed

Files = dict[str, Callable[[Any], object]]  # by name: what writes to an open file
_NAME = re.compile(r"([a-z]+)_(\d+)(?:-(\d+))?")


def write(folder: Path, name: str, files: Files) -> Path:
    """A new folder in ``folder`` with these files and their checksums; its path."""
    temporary = folder / f"{name}.tmp"
    with told(temporary):
        folder.mkdir(exist_ok=True)
        for left in folder.glob("*.tmp"):
            _discard(left)
        temporary.mkdir()
        try:
            found = {file: write_hashed(temporary / file, how) for file, how in files.items()}
            text = checksums.text(found).encode()
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
    """``name`` in ``folder``, or with the next number if it is there."""
    same = [path for path in saved(folder, name.split("_")[0]) if _key(path)[0] == _key(name)[0]]
    return folder / (f"{name}-{_key(same[-1])[1] + 1}" if same else name)


def _discard(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _key(path: Path | str) -> tuple[int, int]:
    """What checkpoints of a kind are ordered by: the steps, and the how many-th of them it is."""
    found = _NAME.fullmatch(Path(path).name)
    assert found is not None
    return int(found[2]), int(found[3] or 1)


def saved(folder: Path, kind: str = "step") -> list[Path]:
    """The checkpoints in ``folder``, oldest first, without those cut short."""
    named = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("*_*")]
    found = [path for path, name in named if name and name[1] == kind and path.is_dir()]
    return sorted(found, key=_key)


def pointed(folder: Path, name: str) -> Path | None:
    """What ``name`` stands for, also as a link or a folder; None if that isn't there."""
    pointer = folder / name
    if os.path.isfile(pointer):  # not what can be no path, as it is too long
        named = pointer.read_text(encoding="utf-8", errors="replace").strip()
        if _NAME.fullmatch(named) is None:
            return None
        pointer = folder / named
    return pointer.resolve() if os.path.exists(pointer / "policy.safetensors") else None


def newest_whole(folder: Path, kind: str = "step", beside: Path | None = None) -> Path | None:
    """The latest checkpoint in ``folder`` that is as it was saved, other than ``beside``."""
    others = (path for path in reversed(saved(folder, kind)) if path != beside)
    return next(filter(checksums.is_whole, others), None)

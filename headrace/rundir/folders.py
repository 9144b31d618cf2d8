"""Names, writes, finds and points to folders in ``checkpoints/``, and suggests run directories."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from headrace.processes import safe_files
from headrace.rundir import checksums
from headrace.rundir.atomic_files import checkpoint_errors, write_hashed

Files = dict[str, Callable[[Any], object]]  # by name: function that writes to an open file
_NAME = re.compile(r"([a-z]+)_(\d+)(?:-(\d+))?")


def write(folder: Path, name: str, files: Files) -> Path:
    """Write a new folder in ``folder`` with these files and checksums; return its path.

    Links inside the run directory, the parent of ``folder``, aren't followed.
    """
    temporary, root = folder / f"{name}.tmp", folder.parent
    with checkpoint_errors(temporary):
        safe_files.make_folder(folder, root)
        for leftover in folder.glob("*.tmp"):
            safe_files.remove(leftover, root)
        write_files(temporary, files, root)
        try:
            target = _unused(folder, name)
            safe_files.replace(temporary, target, root)
        except OSError:
            discard(temporary, root)
            raise
        safe_files.sync(folder, root)
        safe_files.sync(root)
    return target


def write_files(temporary: Path, files: Files, root: Path) -> None:
    """Write a new folder with these files and their checksums; delete it if that fails."""
    safe_files.make_folder(temporary, root, exist_ok=False)
    try:
        hashes = {file: write_hashed(temporary / file, how, root) for file, how in files.items()}
        text = checksums.text(hashes).encode()
        write_hashed(temporary / checksums.NAME, lambda file: file.write(text), root)
        safe_files.sync(temporary, root)
    except OSError:
        discard(temporary, root)
        raise


def _unused(folder: Path, name: str) -> Path:
    """Return the path of ``name`` in ``folder``, with the next number if it exists."""
    same = [path for path in saved(folder, name.split("_")[0]) if _key(path)[0] == _key(name)[0]]
    return folder / (f"{name}-{_key(same[-1])[1] + 1}" if same else name)


def discard(path: Path, root: Path) -> None:
    """Delete what remains of a failed write, as far as possible."""
    with contextlib.suppress(OSError):
        safe_files.remove(path, root)


def _key(path: Path | str) -> tuple[int, int]:
    """Return the sort key of a checkpoint: its steps, and its number among those of this step."""
    match = _NAME.fullmatch(Path(path).name)
    assert match is not None
    return int(match[2]), int(match[3] or 1)


def steps_of(path: Path) -> int:
    """Return the environment steps of a checkpoint, from its name; 0 if unknown."""
    return _key(path)[0] if _NAME.fullmatch(path.name) else 0


def _root(folder: Path) -> Path:
    """Return the run directory if ``folder`` is its ``checkpoints``, otherwise ``folder``."""
    return folder.parent if folder.name == "checkpoints" else folder


def saved(folder: Path, kind: str = "step") -> list[Path]:
    """List the checkpoints in ``folder``, oldest first, without incomplete ones."""
    named = [(path, _NAME.fullmatch(path.name)) for path in folder.glob("*_*")]
    root = _root(folder)
    checkpoints = [
        path
        for path, name in named
        if name and name[1] == kind and safe_files.is_folder(path, root)
    ]
    return sorted(checkpoints, key=_key)


def pointed(folder: Path, name: str) -> Path | None:
    """Return the checkpoint that the file, link or folder ``name`` refers to; None if missing.

    It must be in the same folder. The path of the run directory is resolved.
    """
    root, pointer = _root(folder), folder / name
    named = safe_files.link_target(pointer, root)
    if named is None and safe_files.is_file(pointer, root):
        with contextlib.suppress(OSError):
            content = safe_files.read_bytes(pointer, safe_files.TEXT_BYTES, root)
            named = content.decode(errors="replace").strip()
    if named is not None:
        if _NAME.fullmatch(named) is None:
            return None
        pointer = folder / named
    if not safe_files.is_file(pointer / "policy.safetensors", root):
        return None
    return absolute(pointer)


def absolute(checkpoint: Path) -> Path:
    """Resolve links in the path of a checkpoint's run directory, but not inside it."""
    root = checksums.root_of(checkpoint)
    return root.resolve() / checkpoint.relative_to(root)


def newest_whole(folder: Path, kind: str = "step", beside: Path | None = None) -> Path | None:
    """Return the latest checkpoint in ``folder`` that passes verification, except ``beside``."""
    others = (path for path in reversed(saved(folder, kind)) if path != beside)
    return next(filter(checksums.is_whole, others), None)


def nested_runs(path: Path) -> str:
    """Return a hint such as ``. Did you mean runs/a?`` with the runs in a folder, or ""."""
    runs = sorted(str(file.parent) for file in path.glob("*/metrics.jsonl"))
    return f". Did you mean {', '.join(runs[:3])}{', …' if runs[3:] else ''}?" if runs else ""

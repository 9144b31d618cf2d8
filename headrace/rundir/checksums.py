"""Writes and verifies checksums of a checkpoint's files, in the format of ``sha256sum -c``."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

from headrace.processes import safe_files

NAME = "SHA256SUMS"
POLICY_FILES = ("config.json", "policy.safetensors")
FILES = (*POLICY_FILES, "trainer.pt")
JOB = "HEADRACE_JOB"  # environment variable with a cluster job's id, saved so that checksums differ
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z.]+)")


def text(sums: dict[str, str]) -> str:
    """Format SHA-256 sums by file name as the file of checksums."""
    return "".join(f"{value}  {name}\n" for name, value in sums.items())


def root_of(folder: Path) -> Path:
    """Return the folder below which no link to a checkpoint's files is followed.

    This is the checkpoint's run directory or league if it is in one, otherwise ``folder``.
    """
    inside = folder.parent.name in ("checkpoints", "snapshots")
    return folder.parent.parent if inside else folder


def fault(folder: Path, *names: str) -> tuple[Path, str] | None:
    """Return the first of these files that fails verification, and the reason; None if all pass.

    Without a file of checksums only missing files are detected.
    """
    root = root_of(folder)
    for name in names:
        if not safe_files.is_file(folder / name, root):
            there = os.path.lexists(folder / name)
            return folder / name, "it is not a regular file" if there else "it is missing"
    file = folder / NAME
    if not os.path.lexists(file):
        return None
    try:
        saved = _read(file, root)
    except (OSError, ValueError) as error:
        return file, str(error)
    for name in names:
        if name not in saved:
            return file, f"it has no line for {name}"
        try:
            digest = _sha256(folder / name, root)
        except OSError as error:
            return folder / name, str(error)
        if digest != saved[name]:
            return folder / name, f"its SHA-256 is not the one in {NAME}"
    return None


def is_policy_alone(folder: Path) -> bool:
    """Return True if the file of checksums lists a policy's files and no training state."""
    try:
        return tuple(_read(folder / NAME, root_of(folder))) == POLICY_FILES
    except (OSError, ValueError):
        return False


def is_whole(folder: Path) -> bool:
    """Return True if all files of a checkpoint pass verification."""
    names = FILES if folder.name.startswith("step_") else POLICY_FILES
    return fault(folder, *names) is None


def _sha256(file: Path, root: Path) -> str:
    digest = hashlib.sha256()
    with safe_files.opened(file, safe_files.machine_bytes(), root) as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _read(file: Path, root: Path) -> dict[str, str]:
    return _parse(safe_files.read_bytes(file, safe_files.TEXT_BYTES, root).decode("ascii"))


def _parse(content: str) -> dict[str, str]:
    lines = [_LINE.fullmatch(line) for line in content.removesuffix("\n").split("\n")]
    names = [line and line[2] for line in lines]
    if not content.endswith("\n") or tuple(names) not in (POLICY_FILES, FILES):
        raise ValueError("its lines don't list a checkpoint's files")
    return {line[2]: line[1] for line in lines if line}

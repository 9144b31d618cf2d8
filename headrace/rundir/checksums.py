"""Writes and verifies checksums of a checkpoint's files, in the format of ``sha256sum -c``."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

NAME = "SHA256SUMS"
POLICY_FILES = ("config.json", "policy.safetensors")
FILES = (*POLICY_FILES, "trainer.pt")
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z.]+)")


def text(sums: dict[str, str]) -> str:
    """Format SHA-256 sums by file name as the file of checksums."""
    return "".join(f"{value}  {name}\n" for name, value in sums.items())


def fault(folder: Path, *names: str) -> tuple[Path, str] | None:
    """Return the first of these files that fails verification, and the reason; None if all pass.

    Without a file of checksums only missing files are detected.
    """
    for name in names:
        if not (folder / name).is_file():
            return folder / name, "it is missing"
    file = folder / NAME
    if not file.exists():
        return None
    try:
        saved = _parse(file.read_bytes().decode("ascii"))
    except (OSError, ValueError) as error:
        return file, str(error)
    for name in names:
        if name not in saved:
            return file, f"it has no line for {name}"
        try:
            digest = _sha256(folder / name)
        except OSError as error:
            return folder / name, str(error)
        if digest != saved[name]:
            return folder / name, f"its SHA-256 is not the one in {NAME}"
    return None


def is_whole(folder: Path) -> bool:
    """Return True if all files of a checkpoint pass verification."""
    names = FILES if folder.name.startswith("step_") else POLICY_FILES
    return fault(folder, *names) is None


def _sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _parse(content: str) -> dict[str, str]:
    lines = [_LINE.fullmatch(line) for line in content.removesuffix("\n").split("\n")]
    names = [line and line[2] for line in lines]
    if not content.endswith("\n") or tuple(names) not in (POLICY_FILES, FILES):
        raise ValueError("its lines don't list a checkpoint's files")
    return {line[2]: line[1] for line in lines if line}

"""Checksums of a checkpoint's files, as ``sha256sum -c SHA256SUMS`` reads them."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

NAME = "SHA256SUMS"
POLICY_FILES = ("config.json", "policy.safetensors")
FILES = (*POLICY_FILES, "trainer.pt")
_LINE = re.compile(r"([0-9a-f]{64})  ([a-z.]+)")


def text(sums: dict[str, str]) -> str:
    """What the file of checksums holds of these SHA-256 by file name."""
    return "".join(f"{value}  {name}\n" for name, value in sums.items())


def fault(folder: Path, *names: str) -> tuple[Path, str] | None:
    """The first of these files that isn't what was saved, and how that shows; None: all are.

    A checkpoint of an older version has no checksums: there only a missing file is a fault.
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
            found = _sha256(folder / name)
        except OSError as error:
            return folder / name, str(error)
        if found != saved[name]:
            return folder / name, f"its SHA-256 is not the one in {NAME}"
    return None


def is_whole(folder: Path) -> bool:
    """Whether all files of a checkpoint are what was saved."""
    names = FILES if folder.name.startswith("step_") else POLICY_FILES
    return fault(folder, *names) is None


def _sha256(file: Path) -> str:
    found = hashlib.sha256()
    with file.open("rb") as opened:
        while block := opened.read(1 << 20):
            found.update(block)
    return found.hexdigest()


def _parse(content: str) -> dict[str, str]:
    lines = [_LINE.fullmatch(line) for line in content.removesuffix("\n").split("\n")]
    names = [line and line[2] for line in lines]
    if not content.endswith("\n") or tuple(names) not in (POLICY_FILES, FILES):
        raise ValueError("its lines are not those of a checkpoint")
    return {line[2]: line[1] for line in lines if line}

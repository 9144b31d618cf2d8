"""Applies the instructions of a page in docs/ to a copy of the package."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/extending.md"
_FILE = re.compile(r"^```python\n# (headrace/\S+\.py)\n(.*?)^```", re.DOTALL | re.MULTILINE)
_DIFF = re.compile(r"^```diff\n--- (\S+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def files() -> dict[str, str]:
    """Return the new files of the page, by path."""
    return dict(_FILE.findall(PAGE.read_text(encoding="utf-8")))


def follow(folder: Path) -> None:
    """Copy the package into a folder, and apply all files and changes of the page.

    Raises:
        AssertionError: a line to change doesn't exist exactly once.
    """
    shutil.copytree(ROOT / "headrace", folder / "headrace", symlinks=True)
    for path, text in files().items():
        assert not (folder / path).exists(), path
        (folder / path).write_text(text, encoding="utf-8")
    for path, hunks in _DIFF.findall(PAGE.read_text(encoding="utf-8")):
        text = (folder / path).read_text(encoding="utf-8")
        for hunk in hunks.split("@@\n"):
            before, after = side(hunk, "+"), side(hunk, "-")
            assert text.count(before) == 1, f"{path}\n{before}"
            text = text.replace(before, after)
        (folder / path).write_text(text, encoding="utf-8")


def side(hunk: str, other: str) -> str:
    """Return a hunk's lines without those of the other side."""
    lines = [line for line in hunk.splitlines(keepends=True) if not line.startswith(other)]
    return "".join(line[1:] for line in lines)

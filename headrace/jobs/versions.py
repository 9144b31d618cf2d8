"""What has to be the same on every node."""

from __future__ import annotations

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Of Python, Ray and headrace here; "none" where one isn't installed."""
    found = {"Python": platform.python_version()}
    for package in ("ray", "headrace"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = "none"
    return found


def difference(wanted: dict[str, str]) -> str:
    """How this node's versions differ from those of the head, as a sentence; "": they don't."""
    here = versions()
    wrong = [f"{k} {here.get(k, 'none')}, not {v}" for k, v in wanted.items() if here.get(k) != v]
    if not wrong:
        return ""
    return (
        f"has {' and '.join(wrong)} as the first node has: install the same there, or keep the "
        "virtual environment on a file system that all nodes share"
    )

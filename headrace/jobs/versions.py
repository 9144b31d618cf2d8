"""Compares the versions of Python, Ray and headrace on the nodes of a job."""

from __future__ import annotations

import importlib.metadata
import platform


def versions() -> dict[str, str]:
    """Return the versions here; "none" for a package that isn't installed."""
    installed = {"Python": platform.python_version()}
    for package in ("ray", "headrace"):
        try:
            installed[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            installed[package] = "none"
    return installed


def difference(expected: dict[str, str], driver: str) -> str:
    """Return how this node's versions differ from those expected; "": they don't.

    Args:
        expected: the versions of the driver.
        driver: name of the driver's machine, for the message.
    """
    here = versions()
    wrong = [f"{k} {here.get(k, 'none')}, not {v}" for k, v in expected.items() if here.get(k) != v]
    if not wrong:
        return ""
    return (
        f"has {' and '.join(wrong)} as {driver} has: install the same there, or keep the "
        "virtual environment on a file system that all nodes share"
    )

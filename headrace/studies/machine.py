"""What every study writes down of the machine, and how it prints and saves its tables."""

from __future__ import annotations

import contextlib
import csv
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from rich.console import Console


def machine() -> str:
    """One line: processor, cores, memory, and the versions that matter."""
    from headrace.config import num_cores  # imports torch, which not every study needs

    model = platform.processor() or platform.machine()
    with contextlib.suppress(OSError, IndexError):
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = info.split("model name", 1)[1].split("\n", 1)[0].split(":", 1)[1].strip()
    parts = [f"{num_cores()} cores ({model})"]
    with contextlib.suppress(OSError, ValueError):  # these names are not everywhere
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        parts.append(f"{memory / 2**30:.0f} GiB")
    parts.append(f"Python {platform.python_version()}")
    for package in ("torch", "gymnasium", "envpool", "stable-baselines3", "numpy"):
        with contextlib.suppress(PackageNotFoundError):
            parts.append(f"{package} {version(package)}")
    return ", ".join(parts)


def wide_console() -> Console:
    """Standard output, wide enough for the tables also where it isn't a terminal."""
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = 140
    return console


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with a header of all their keys, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)

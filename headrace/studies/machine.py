"""What every study says of the machine and of itself, and how it prints and saves its tables."""

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
from rich.table import Table

from headrace.process import num_cores


def machine() -> str:
    """One line: processor, cores, memory, and the versions that matter."""
    try:
        info = Path("/proc/cpuinfo").read_text(encoding="utf-8")
        model = info.split("model name", 1)[1].split("\n", 1)[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        model = platform.processor() or platform.machine()  # which starts a process
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
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    return console


def head(doc: str | None, settings: str, console: Console) -> None:
    """Print what a study reproduces, its settings and the machine."""
    first = (doc or "").strip().split("\n\n")[0]
    console.print(f"{first}\n{settings}\nMachine: {machine()}", soft_wrap=True)


def show(
    rows: Sequence[Mapping[str, Any]], title: str, console: Console, wrap: bool = False
) -> None:
    """Print a table of texts, one column per key of the first row, which is aligned to the left.

    Args:
        title: may be wider than the table; empty: none.
        wrap: break cells where the console is narrow.
    """
    if title:
        console.print(title, soft_wrap=True)
    table = Table()
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if i else "left", no_wrap=not wrap)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Rows with a header of all their keys, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, names)
        writer.writeheader()
        writer.writerows(rows)

"""Machine description, and console and CSV output shared by all studies."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from headrace.rundir.atomic_files import checkpoint_errors, replace_text
from headrace.rundir.machine_info import machine as described
from headrace.rundir.machine_info import versions

_PACKAGES = ("Python", "torch", "gymnasium", "envpool", "stable-baselines3", "numpy")


def machine() -> str:
    """Describe processor, cores, memory and relevant versions in one line."""
    info, installed = described(), versions()
    parts = [f"{info['cores']} cores ({info['processor']})", info.get("memory", "")]
    parts += [f"{name} {installed[name]}" for name in _PACKAGES if name in installed]
    return ", ".join(filter(None, parts))


def wide_console() -> Console:
    """Return a console on standard output that is wide enough for tables without a terminal."""
    console = Console(highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 140
    return console


def head(doc: str | None, settings: str, console: Console) -> None:
    """Print the purpose of a study, its settings and the machine."""
    first = (doc or "").strip().split("\n\n")[0]
    console.print(f"{first}\n{settings}\nMachine: {machine()}", soft_wrap=True)


def show(
    rows: Sequence[Mapping[str, Any]], title: str, console: Console, wrap: bool = False
) -> None:
    """Print a table with one column per key of the first row; the first column is left-aligned.

    Args:
        title: text above the table, which may be wider; empty: none.
        wrap: break cells if the console is narrow.
    """
    if title:
        console.print(title, soft_wrap=True)
    table = Table()
    for i, name in enumerate(rows[0]):
        table.add_column(name, justify="right" if i else "left", no_wrap=not wrap)
    for row in rows:
        table.add_row(*("" if value is None else str(value) for value in row.values()))
    console.print(table)


def markdown(rows: Sequence[Mapping[str, str]]) -> str:
    """Format a Markdown table, with a column per key of the first row."""
    names = list(rows[0])
    cells = [names, *([row.get(name, "") for name in names] for row in rows)]
    head, *body = [f"| {' | '.join(line)} |" for line in cells]
    return "\n".join([head, "|" + "---|" * len(names), *body])


def write_csv(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows with a header of all their keys, in order of appearance."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    with checkpoint_errors(path):
        replace_text(path, text.getvalue())

"""Report of environments.py: a Markdown table with notes below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environments_cases import CASES
from learning_report import BEGIN, END

from headrace.spaces.walk import parts
from headrace.studies.machine import machine, markdown

PAGE = "environments.md"
Said = dict[str, Any]  # ok: bool; said: the sentence or number; failed: neither


def brief(space: Any) -> str:
    """Describe a space in a few words: kinds, shapes and dtypes, without bounds."""
    inner = parts(space)
    if inner is None:
        kind = type(space).__name__
        if kind == "Box":
            return f"{'×'.join(map(str, space.shape)) or 'a number'} {space.dtype}"
        size = _row(space.nvec.tolist()) if kind == "MultiDiscrete" else space.n
        return f"{kind}({size})"
    named = type(space).__name__ == "Dict"
    return ", ".join(
        f"{key}: {brief(part)}" if named else brief(part) for key, part in inner.items()
    )


def _row(sizes: list[Any]) -> str:
    same = len(sizes) > 3 and all(size == sizes[0] for size in sizes)
    return f"[{sizes[0]}] * {len(sizes)}" if same else str(sizes)


def cell(said: Said) -> str:
    """Describe a step's result: its output, its error message, or how it failed."""
    if said["ok"]:
        return said.get("said") or "yes"
    return f"**failed**: {said['failed']}" if "failed" in said else str(said["said"])


def table(results: Mapping[str, Said], steps: Sequence[str]) -> str:
    """Return the results in Markdown. Notes below the table explain steps that don't work."""
    rows, notes = [], list[str]()
    for case in CASES:
        record = results.get(case.env_id)
        if record is None:
            continue
        row = {"package": f"{case.package} {record['version']}", "environment": f"`{case.env_id}`"}
        row["flags"] = f"`{case.flags}`" if case.flags else ""
        tried = {name: record["steps"][name] for name in steps if name in record["steps"]}
        works = [name for name in tried if tried[name]["ok"]]
        row["works"] = "all" if works == list(steps) else ", ".join(works)
        for name in (name for name in tried if name not in works):
            # Details in parentheses would make the notes long.
            notes.append(f"`{case.env_id}`, {name}: {cell(tried[name]).partition(' (')[0]}")
            row["works"] += f" [{len(notes)}]"
        rows.append({key: value.replace("|", "\\|") for key, value in row.items()})
    listed = "\n".join(f"{number}. {note}" for number, note in enumerate(notes, 1))
    return markdown(rows) + (f"\n\n{listed}" if notes else "")


def write_page(folder: Path, results: Mapping[str, Said], steps: Sequence[str]) -> None:
    """Put the table between the two marks of a page in a folder."""
    page, packages = folder / PAGE, {r["package"].partition("[")[0] for r in results.values()}
    count = f"{len(results)} environments of {len(packages)} packages"
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    text = f"{count}; {machine()}.\n\n{table(results, steps)}"
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{rest.partition(END)[2]}", encoding="utf-8")

"""What a scaling study prints and writes once its runs are done."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from headrace.config import num_cores
from headrace.studies.children import Processes
from headrace.studies.machine import machine, write_csv
from headrace.studies.scaling import allreduce, figures, picture
from headrace.studies.scaling.model import Model, Timing, assumptions, extrapolate, fit
from headrace.studies.table import Study, show

if TYPE_CHECKING:
    from headrace.studies.scaling.command import Scaling

Row = Mapping[str, Any]

# Columns of the tables: the heading, the figure, the factor of its unit and the digits.
_SPEED = (
    ("steps/s", "fps", 1, 0),
    ("speed-up", "speedup_fps", 1, 2),
    ("efficiency", "efficiency", 1, 3),
    ("t_iter ms", "t_iter", 1e3, 2),
    ("rollout", "t_rollout", 1e3, 2),
    ("learn", "t_learn", 1e3, 2),
    ("comm", "t_comm", 1e3, 2),
    ("sync", "t_sync", 1e3, 2),
    ("rho_comm", "rho_comm", 1, 3),
    ("rho_sync", "rho_sync", 1, 3),
)
_LEARNING = (
    ("final return", "final_return", 1, 1),
    ("min", "final_return_min", 1, 1),
    ("max", "final_return_max", 1, 1),
    ("KL", "approx_kl", 1, 4),
    ("clipped", "clipfrac", 1, 3),
    ("entropy", "entropy", 1, 3),
    ("value loss", "value_loss", 1, 3),
)
_TIME = (
    ("seconds", "time_to_target", 1, 2),
    ("speed-up", "speedup_time", 1, 2),
    ("reached", "reached", 1, 0),
    ("of", "runs", 1, 0),
)
_NO_MODEL = "Nothing is extrapolated: no speed was measured within this machine's cores."


def write(
    scaling: Scaling, rows: Sequence[Row], predictable: tuple[list[int], str], console: Console
) -> None:
    """Print and write everything that follows from the runs.

    Args:
        rows: of the study's table, one or more.
        predictable: the world sizes to extrapolate to, and why there are no larger ones, if so.
    """
    folder, (sizes, limit) = Path(scaling.output), predictable
    summary = figures.summarise(rows, scaling.cores_per_learner, num_cores())
    write_csv(folder / "summary.csv", [row | {"machine": machine()} for row in summary])
    own_bytes = rows[0]["gradient_bytes"]
    timings = _timings(scaling, [row["world_size"] for row in summary], own_bytes, console)
    model = fit(
        scaling.mode,
        figures.measurements(summary),
        timings,
        allreduce.messages(scaling.config, own_bytes),
        max(1, num_cores() // scaling.cores_per_learner),
        scaling.link,
    )
    predicted: list[dict[str, float]] = []
    if model is not None:
        sizes = sorted({*sizes, *(row["world_size"] for row in summary)})
        first = figures.reference(summary)
        predicted = extrapolate(model, sizes, (first["world_size"], first["fps"]))
    said = [_NO_MODEL] if model is None else assumptions(model, num_cores())
    said += [limit] if limit else []
    _write_model(folder / "model.json", model, predicted, summary, timings, said)
    _print_tables(scaling, summary, predicted, console)
    for sentence in ["What the extrapolation rests on:", *(f"- {text}" for text in said)]:
        console.print(sentence, soft_wrap=True)
    if figures.reference(summary)["fps"] is not None:
        path = folder / "scaling.png"
        picture.draw_scaling(summary, predicted, scaling.title, num_cores(), path)
    if curves := _curves(scaling, rows):
        exceeding = [row["world_size"] for row in summary if row["exceeds_cores"]]
        picture.draw_curves(
            curves, exceeding, scaling.target_return, scaling.title, folder / "curves.png"
        )
    else:
        console.print("no curves.png: without --eval-interval nothing is evaluated on the way")
    written = sorted(path.name for path in folder.iterdir())
    console.print(f"in {folder}: {', '.join(written)}", soft_wrap=True)


def _timings(
    scaling: Scaling, world_sizes: Sequence[int], own_bytes: int, console: Console
) -> list[Timing]:
    """All-reduces of the measured world sizes, and of 2 where the cores allow it."""
    sizes = sorted({*world_sizes, *([2] if num_cores() >= 2 else [])})
    table = Study(Path(scaling.output), allreduce.COLUMNS, "allreduce.csv")
    message_bytes = sorted({*allreduce.MESSAGE_BYTES, own_bytes})
    return allreduce.measure(table, sizes, message_bytes, Processes(), console)


def _curves(scaling: Scaling, rows: Sequence[Row]) -> dict[int, list[figures.Lines]]:
    """By world size, the evaluations of each run that has any."""
    curves: dict[int, list[figures.Lines]] = {}
    for row in sorted(rows, key=lambda row: row["world_size"]):
        size = row["world_size"]
        lines = figures.evaluations(scaling.run_dir(size, row["seed"]))
        if lines:
            curves.setdefault(size, []).append(lines)
    return curves


def _write_model(
    path: Path,
    model: Model | None,
    predicted: Sequence[Row],
    summary: Sequence[Row],
    timings: Iterable[Timing],
    said: Sequence[str],
) -> None:
    """Everything that the extrapolation is made of."""
    fitted = None if model is None else dataclasses.asdict(model)
    if fitted is not None and math.isinf(fitted["link"]["bytes_per_s"]):
        fitted["link"]["bytes_per_s"] = None  # JSON has no infinity
    values = {
        "model": fitted,
        "assumptions": said,
        "extrapolated": predicted,
        "measured": summary,
        "all_reduces": [dataclasses.asdict(timing) for timing in timings],
        "machine": machine(),
    }
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


# -- tables ----------------------------------------------------------------------------------------


def _print_tables(
    scaling: Scaling, summary: Sequence[Row], predicted: Sequence[Row], console: Console
) -> None:
    """Speed and learning as measured, then the extrapolation."""
    first = figures.reference(summary)["world_size"]
    relative = "speed-ups relative to W = 1"
    if first != 1:
        relative = f"speed-ups are {first} x those over W = {first}; W = 1 was not measured"
    names = {
        row["world_size"]: f"{row['world_size']}{' *' if row['exceeds_cores'] else ''}"
        for row in summary
    }
    _show(f"{scaling.title}; medians, {relative}", _table(summary, _SPEED, names), console)
    if any(row["exceeds_cores"] for row in summary):
        console.print(
            f"* wants more cores than the {num_cores()} of this machine: ranks take turns"
        )
    _show("Learning", _table(summary, _LEARNING, names), console)
    if scaling.target_return is not None:
        title = f"Seconds of training until an evaluation reaches {scaling.target_return:g}"
        _show(title, _table(summary, _TIME, names), console)
    if predicted:
        title = "By the model, each rank with cores of its own"
        _show(title, _table(predicted, _SPEED, {}), console)


def _show(title: str, rows: Sequence[Row], console: Console) -> None:
    """A table whose title may be wider than itself."""
    console.print(title, soft_wrap=True)
    show(rows, "", console)


def _table(
    rows: Sequence[Row], columns: Sequence[tuple[str, str, float, int]], names: Mapping[int, str]
) -> list[dict[str, str]]:
    """Texts: a dash where there is no figure."""
    return [
        {"W": names.get(row["world_size"], str(row["world_size"]))}
        | {
            head: "–" if row[name] is None else f"{row[name] * factor:,.{digits}f}"
            for head, name, factor, digits in columns
        }
        for row in rows
    ]

"""Prints and writes the results of a scaling study."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from headrace.processes import num_cores
from headrace.rundir.atomic_files import write_json
from headrace.rundir.curves import Curve
from headrace.studies.aggregation import Row, grouped
from headrace.studies.machine import machine, show, write_csv
from headrace.studies.plotting import draw_curves
from headrace.studies.scaling import allreduce, figures, picture
from headrace.studies.scaling.assumptions import assumptions
from headrace.studies.scaling.model import Timing, extrapolate, fit
from headrace.studies.scaling.settings import Scaling, predictable

# Columns of the tables: heading, metric, factor of its unit, digits.
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
    scaling: Scaling, rows: Sequence[Row], timings: Sequence[Timing], console: Console
) -> None:
    """Print and write all results of one or more runs."""
    cores, folder = num_cores(), Path(scaling.output)
    summary = figures.summarise(rows, scaling.cores_per_learner, cores)
    messages = allreduce.messages(scaling.config, rows[0]["gradient_bytes"])
    largest = max(1, cores // scaling.cores_per_learner)
    broadcasts = allreduce.rows_told(scaling.config)
    model = fit(
        scaling.mode, summary, timings, messages, largest, rows_told=broadcasts, link=scaling.link
    )
    (sizes, limit), first = predictable(scaling), figures.reference(summary)
    predicted, sentences = list[dict[str, float]](), [_NO_MODEL]
    if model is not None:
        asked = sorted({*sizes, *(row["world_size"] for row in summary)})
        predicted = extrapolate(model, asked, (first["world_size"], first["fps"]))
        sentences = assumptions(model, cores)
    sentences += [limit] if limit else []
    write_csv(folder / "summary.csv", [{**row, "machine": machine()} for row in summary])
    fitted = None if model is None else dataclasses.asdict(model)
    if fitted is not None and math.isinf(fitted["link"]["bytes_per_s"]):
        fitted["link"]["bytes_per_s"] = None  # JSON has no infinity
    values = {
        "model": fitted,
        "assumptions": sentences,
        "extrapolated": predicted,
        "measured": summary,
        "all_reduces": [dataclasses.asdict(timing) for timing in timings],
        "machine": machine(),
    }
    write_json(folder / "model.json", values)
    _print_tables(scaling, summary, predicted, console)
    for sentence in ["Assumptions of the extrapolation:", *(f"- {text}" for text in sentences)]:
        console.print(sentence, soft_wrap=True)
    if first["fps"] is not None:
        path = folder / "scaling.png"
        picture.draw_scaling(summary, predicted, scaling.title, cores, path)
    if not _draw_returns(scaling, rows, cores, folder / "curves.png"):
        console.print("no curves.png: runs have no evaluations without --eval-interval")
    written = sorted(path.name for path in folder.iterdir())
    console.print(f"in {folder}: {', '.join(written)}", soft_wrap=True)


def _draw_returns(scaling: Scaling, rows: Sequence[Row], cores: int, path: Path) -> bool:
    """Plot evaluated returns against steps and seconds; False if there are none."""
    evaluated: dict[str, list[figures.Lines]] = {}
    dashed = set()
    for size, of_size in sorted(grouped(rows, lambda row: row["world_size"]).items()):
        name = f"W = {size}"
        if size * scaling.cores_per_learner > cores:
            dashed.add(name := f"{name}, beyond the cores")
        runs = [figures.evaluations(scaling.run_dir(size, row["seed"])) for row in of_size]
        if with_evaluations := [run for run in runs if run]:
            evaluated[name] = with_evaluations
    axes = {"env_steps": "environment steps", "seconds": "seconds of training, without evaluations"}
    panels: dict[str, dict[str, list[Curve]]] = {
        label: {
            name: [
                ([line[x] for line in run], [line["return_mean"] for line in run]) for run in runs
            ]
            for name, runs in evaluated.items()
        }
        for x, label in axes.items()
    }
    if evaluated:
        title = scaling.title
        ylabel, level = "return of the deterministic policy", scaling.config.target_return
        draw_curves(panels, title, ylabel, path, level=level, runs=True, dashed=dashed)
    return bool(evaluated)


# -- tables ----------------------------------------------------------------------------------------


def _print_tables(
    scaling: Scaling, summary: Sequence[Row], predicted: Sequence[Row], console: Console
) -> None:
    """Print speed and learning as measured, then the extrapolation."""
    first, target = figures.reference(summary)["world_size"], scaling.config.target_return
    relative = "speed-ups relative to W = 1"
    if first != 1:
        relative = f"speed-ups are {first} x those over W = {first}; W = 1 was not measured"
    names = {
        row["world_size"]: f"{row['world_size']}{' *' if row['exceeds_cores'] else ''}"
        for row in summary
    }
    show(_table(summary, _SPEED, names), f"{scaling.title}; medians, {relative}", console)
    if any(row["exceeds_cores"] for row in summary):
        console.print(
            f"* needs more cores than the {num_cores()} of this machine: ranks share them"
        )
    show(_table(summary, _LEARNING, names), "Learning", console)
    if target is not None:
        title = f"Seconds of training until an evaluation reaches {target:g}"
        show(_table(summary, _TIME, names), title, console)
    if predicted:
        title = "Model, with separate cores for each rank"
        show(_table(predicted, _SPEED, {}), title, console)


def _table(
    rows: Sequence[Row], columns: Sequence[tuple[str, str, float, int]], names: Mapping[int, str]
) -> list[dict[str, str]]:
    """Format rows as texts, with a dash for missing metrics."""
    return [
        {"W": names.get(row["world_size"], str(row["world_size"]))}
        | {
            head: "–" if row[name] is None else f"{row[name] * factor:,.{digits}f}"
            for head, name, factor, digits in columns
        }
        for row in rows
    ]

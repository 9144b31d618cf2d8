"""What a scaling study prints and writes once its runs are done."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.studies.drawing import draw_curves
from headrace.studies.machine import machine, show, write_csv
from headrace.studies.means import Curve, Row
from headrace.studies.scaling import figures, picture
from headrace.studies.scaling.model import Model, Timing, assumptions

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


@dataclass(frozen=True)
class Found:
    """What a study found."""

    title: str
    num_cores: int  # of this machine
    target_return: float | None
    summary: Sequence[Row]  # what figures.summarise gave, one or more
    evaluations: Mapping[int, Sequence[figures.Lines]]  # by world size: of each run
    timings: Sequence[Timing]
    model: Model | None
    predicted: Sequence[Row]  # by the model
    limit: str  # why there are no larger world sizes; empty where there are

    @property
    def said(self) -> list[str]:
        """What the extrapolation rests on."""
        rests = [_NO_MODEL] if self.model is None else assumptions(self.model, self.num_cores)
        return [*rests, self.limit] if self.limit else rests


def write(found: Found, folder: Path, console: Console) -> None:
    """Print and write everything that follows from the runs."""
    write_csv(folder / "summary.csv", [{**row, "machine": machine()} for row in found.summary])
    _write_model(found, folder / "model.json")
    _print_tables(found, console)
    for sentence in ["What the extrapolation rests on:", *(f"- {text}" for text in found.said)]:
        console.print(sentence, soft_wrap=True)
    if figures.reference(found.summary)["fps"] is not None:
        path = folder / "scaling.png"
        picture.draw_scaling(found.summary, found.predicted, found.title, found.num_cores, path)
    if found.evaluations:
        _draw_returns(found, folder / "curves.png")
    else:
        console.print("no curves.png: without --eval-interval nothing is evaluated on the way")
    written = sorted(path.name for path in folder.iterdir())
    console.print(f"in {folder}: {', '.join(written)}", soft_wrap=True)


def _draw_returns(found: Found, path: Path) -> None:
    """Evaluated returns against steps and seconds."""
    exceeding = {row["world_size"] for row in found.summary if row["exceeds_cores"]}
    names = {
        size: f"W = {size}{', beyond the cores' if size in exceeding else ''}"
        for size in found.evaluations
    }
    axes = {"env_steps": "environment steps", "seconds": "seconds of training, without evaluations"}
    panels: dict[str, dict[str, list[Curve]]] = {
        label: {
            names[size]: [([e[x] for e in run], [e["return_mean"] for e in run]) for run in runs]
            for size, runs in found.evaluations.items()
        }
        for x, label in axes.items()
    }
    draw_curves(
        panels,
        f"{found.title}; mean over runs, band of one standard error",
        "return of the deterministic policy",
        path,
        level=found.target_return,
        runs=True,
        dashed={names[size] for size in exceeding & names.keys()},
    )


def _write_model(found: Found, path: Path) -> None:
    """Everything that the extrapolation is made of."""
    fitted = None if found.model is None else dataclasses.asdict(found.model)
    if fitted is not None and math.isinf(fitted["link"]["bytes_per_s"]):
        fitted["link"]["bytes_per_s"] = None  # JSON has no infinity
    values: dict[str, Any] = {
        "model": fitted,
        "assumptions": found.said,
        "extrapolated": found.predicted,
        "measured": found.summary,
        "all_reduces": [dataclasses.asdict(timing) for timing in found.timings],
        "machine": machine(),
    }
    path.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


# -- tables ----------------------------------------------------------------------------------------


def _print_tables(found: Found, console: Console) -> None:
    """Speed and learning as measured, then the extrapolation."""
    summary, first = found.summary, figures.reference(found.summary)["world_size"]
    relative = "speed-ups relative to W = 1"
    if first != 1:
        relative = f"speed-ups are {first} x those over W = {first}; W = 1 was not measured"
    names = {
        row["world_size"]: f"{row['world_size']}{' *' if row['exceeds_cores'] else ''}"
        for row in summary
    }
    show(_table(summary, _SPEED, names), f"{found.title}; medians, {relative}", console)
    if any(row["exceeds_cores"] for row in summary):
        console.print(
            f"* wants more cores than the {found.num_cores} of this machine: ranks take turns"
        )
    show(_table(summary, _LEARNING, names), "Learning", console)
    if found.target_return is not None:
        title = f"Seconds of training until an evaluation reaches {found.target_return:g}"
        show(_table(summary, _TIME, names), title, console)
    if found.predicted:
        title = "By the model, each rank with cores of its own"
        show(_table(found.predicted, _SPEED, {}), title, console)


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

"""``headrace bench aaps``: savings and cost of adaptive weight synchronisation.

Trains PPO on a ClusterEnv with several divergence thresholds, with weights fetched at every
version, and with weights fetched every k versions. Each k transfers as many bytes as one of the
thresholds.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import tyro
from rich.console import Console

from headrace.errors import require_choice
from headrace.processes import safe_files
from headrace.recipes import take_flag
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.rundir.curves import Curve
from headrace.rundir.files import read_jsonl
from headrace.studies.aaps.run import PRESETS, Aaps, cases_of, train_case
from headrace.studies.aggregation import Row, grouped, means, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.plotting import draw_curves
from headrace.studies.run_table import Case, Study

RESULTS = (
    "final_return", "eval_return", "syncs_per_worker", "kilobytes", "max_divergence", "iterations",
    "env_steps", "sps",
)  # fmt: skip
COLUMNS = ("weight_sync", "kl_threshold", "seed", "settings", *RESULTS)
_SHOWN = ("final_return", "eval_return", "syncs_per_worker", "sps")


# -- the command -----------------------------------------------------------------------------------


def main(argv: Sequence[str]) -> int:
    """``headrace bench aaps [--preset machine|paper] [flags]``; 1 if runs failed.

    Raises:
        ConfigError: a flag is invalid; nothing was started.
    """
    preset, rest = take_flag(list(argv), "--preset")
    preset = "machine" if preset is None else preset
    require_choice("preset", preset, PRESETS)
    aaps = tyro.cli(
        Annotated[Aaps, tyro.conf.arg(name="")],
        default=PRESETS[preset],
        prog=f"headrace bench aaps --preset {preset}",
        args=rest,
    )
    return run(aaps, wide_console())


def equal_intervals(aaps: Aaps, rows: Sequence[Row]) -> dict[float, int]:
    """Return for each threshold the k of every-<k> that fetches as often (median of runs)."""
    adaptive = [row for row in rows if row["weight_sync"] == "adaptive"]
    return {
        threshold: max(1, round(aaps.iterations / statistics.median(
            row["syncs_per_worker"] for row in runs)))
        for threshold, runs in grouped(adaptive, lambda row: row["kl_threshold"]).items()
        if threshold in aaps.kl_thresholds
    }  # fmt: skip


def run(aaps: Aaps, console: Console) -> int:
    """Measure missing runs, then print and write all results; return 1 if runs failed."""
    study = Study(Path(aaps.output), COLUMNS)

    def measure(case: Case, children: Children) -> Mapping[str, Any]:
        folder = run_dir(aaps, case)
        with checkpoint_errors(folder):
            safe_files.make_folders(folder, Path(aaps.output))
        request = {"folder": str(folder), "study": dataclasses.asdict(aaps), "case": dict(case)}
        return children.call(train_case, request, aaps.timeout_s, folder / "output.log")

    steps = f"{aaps.iterations} iterations of {aaps.nodes} workers × {aaps.envs_per_node} × "
    head(__doc__, f"{aaps.env_id}, {steps}{aaps.num_steps} steps, {aaps.repeats} seeds", console)
    kinds = [("every", 0.0), *(("adaptive", threshold) for threshold in aaps.kl_thresholds)]
    cases = cases_of(aaps, kinds)
    study.run(cases, measure, console, shown=_SHOWN)
    if aaps.fixed_intervals:
        intervals = set(equal_intervals(aaps, study.done(cases)).values()) - {1}
        more = cases_of(aaps, [(f"every-{k}", 0.0) for k in sorted(intervals)])
        study.run(more, measure, console, shown=_SHOWN)
        cases += more
    if rows := study.done(cases):
        write(aaps, rows, console)
    return study.status(console, "weight_sync", "kl_threshold", "seed")


def run_dir(aaps: Aaps, case: Case) -> Path:
    """Return the folder of a run."""
    name = f"{case['weight_sync']}-{case['kl_threshold']:g}-seed{case['seed']}"
    return Path(aaps.output) / "runs" / aaps.fingerprint / name


def name_of(case: Row) -> str:
    """Return the name of a setting in tables and plots."""
    adaptive = case["weight_sync"] == "adaptive"
    return f"KL > {case['kl_threshold']:g}" if adaptive else str(case["weight_sync"])


# -- tables and plots ------------------------------------------------------------------------------


def write(aaps: Aaps, rows: Sequence[Row], console: Console) -> None:
    """Write the table, ``summary.csv`` and the two plots."""
    intervals, by_name = equal_intervals(aaps, rows), grouped(rows, name_of)
    table, summary = [], []
    for name, runs in by_name.items():
        averages = means(runs, RESULTS)
        interval = intervals.get(runs[0]["kl_threshold"]) if name.startswith("KL") else None
        table.append(
            {
                "weights": name,
                "return": plus_minus(averages, "final_return"),
                "evaluated": plus_minus(averages, "eval_return"),
                "syncs per worker": plus_minus(averages, "syncs_per_worker"),
                "fewer": f"{aaps.iterations / averages['syncs_per_worker']:.1f}x",
                "greatest mean of 4 KLs": plus_minus(averages, "max_divergence", digits=4),
                "kB sent": plus_minus(averages, "kilobytes", digits=0),
                "steps/s": plus_minus(averages, "sps", digits=0),
                "equal bytes": "" if interval is None else f"every-{interval}",
            }
        )
        summary.append({"weights": name, **{k: averages[k] for k in RESULTS}})
    show(table, f"Mean ± standard error of {aaps.repeats} runs", console)
    output = Path(aaps.output)
    write_csv(output / "summary.csv", summary)
    _draw(aaps, by_name, output)
    console.print(f"table: {output / 'runs.csv'}, plots: {output}/curves.png, {output}/syncs.png")


def _draw(aaps: Aaps, by_name: Mapping[str, Sequence[Row]], output: Path) -> None:
    kinds = {
        "on drift": [n for n in by_name if n.startswith("KL") or n == "every"],
        "at fixed intervals": [n for n in by_name if n.startswith("every")],
    }
    if kinds["at fixed intervals"] == ["every"]:
        del kinds["at fixed intervals"]  # nothing to compare
    steps = "environment steps, weights fetched "
    for figure, column, ylabel in (
        (
            "curves",
            "evaluated",
            f"return, {aaps.eval_episodes} episodes with the likeliest actions",
        ),
        ("syncs", "syncs", "weights fetched per worker"),
    ):
        panels = {
            steps + kind: {n: [_curve(aaps, row, column) for row in by_name[n]] for n in names}
            for kind, names in kinds.items()
            if names
        }
        title = f"{aaps.env_id}: {aaps.repeats} seeds"
        draw_curves(panels, title, ylabel, output / f"{figure}.png")


def _curve(aaps: Aaps, row: Row, column: str) -> Curve:
    lines = read_jsonl(run_dir(aaps, row) / "curve.jsonl")
    lines = [line for line in lines if line[column] is not None]
    return [line["env_steps"] for line in lines], [line[column] for line in lines]

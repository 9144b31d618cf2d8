"""IMPACT's comparisons (Luo et al. 2020, Figures 3 to 7 and 9) at the scale of one small machine.

    python benchmarks/impact.py                                # all studies, about an hour
    python benchmarks/impact.py --studies ratio k --seeds 5

    ratio     Figure 3a  the surrogate's ratio: R1 = π/target, R2 = π/μ, R3 = π/max(target, μ/ρ)
    t_target  Figure 3b  the target network's period: NK/16 … 16 NK optimiser steps
    k         Figure 4   K, the passes over each batch: 1, 2, 4, 16
    workers   Figure 7   1, 2 and 4 actors with equal numbers of environments
    ladder    Figure 9   IMPALA, + PPO objective, + circular buffer, + target-worker clipping
    compare   Figures 5, 6  IMPACT, IMPALA and PPO with tuned settings

Results are plotted against steps and seconds. So each run has a separate process and the machine
to itself, and all settings run with one seed before the next seed. Seconds count from the end of
the first update, because imports and the start of processes are the same for all. Runs that several
studies share run once. Finished runs aren't repeated, so an interrupted study can be continued.

The output is runs.csv (a line per run), curves/ (a file per run), summary.csv (mean ± standard
error over seeds per setting) and a plot per study. The return is the mean of the last 100 training
episodes; ``eval`` is the return of the final deterministic policy.
"""

from __future__ import annotations

import csv
import inspect
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import tyro
from impact_runs import Run, curve_path, measure
from impact_tasks import STUDIES, TASKS, Task, ladder
from rich.console import Console

from headrace.errors import ConfigError, nearest
from headrace.rundir.curves import Curve
from headrace.studies.aggregation import means, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, machine, show, wide_console, write_csv
from headrace.studies.plotting import draw_curves
from headrace.studies.run_table import Case, Study

Name = Literal["ratio", "t_target", "k", "workers", "ladder", "compare"]
RESULTS = (
    "final_return", "eval_return", "eval_std", "area", "threshold", "steps_to", "seconds_to",
    "sps", "seconds", "startup_s", "lag_mean", "learner_busy", "actor_busy",
)  # fmt: skip
MEASURES = (
    "final_return", "eval_return", "area", "return_at_equal_time", "steps_to", "seconds_to",
    "sps", "seconds", "lag_mean",
)  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Reproduce the studies of the IMPACT paper; see the module's docstring."""

    studies: tuple[Name, ...] = ("ratio", "t_target", "k", "workers", "ladder", "compare")
    """Studies to run."""
    seeds: int = 3
    """Number of seeds, from 0."""
    env_id: str = "LunarLander-v3"
    """Task of all studies except compare, from impact_tasks.TASKS."""
    compare_env_ids: tuple[str, ...] = ("LunarLander-v3", "HalfCheetah-v5")
    """Tasks of compare."""
    total_steps: int | None = None
    """Environment steps of a run; None: the task's default."""
    eval_episodes: int = 50
    """Episodes of the final evaluation."""
    log_interval_s: float = 0.1
    """Seconds between points of a curve."""
    output: Path = Path("runs/benchmarks/impact")
    """Folder for all output."""


@dataclass(frozen=True)
class Panel:
    """One study on one environment."""

    study: str
    task: Task
    settings: dict[str, Run]  # by name in the legend, each with seed 0
    seeds: int

    @property
    def runs(self) -> list[Run]:
        """Return the runs: all settings with one seed, then all with the next."""
        seeds = range(self.seeds)
        return [replace(run, seed=seed) for seed in seeds for run in self.settings.values()]

    @property
    def title(self) -> str:
        """Return the first line of the study's docstring, and the environment."""
        doc = inspect.getdoc(STUDIES[self.study]) or ""
        seeds = f"{self.seeds} seed{'s'[: self.seeds > 1]}"
        return f"{doc.splitlines()[0].rstrip('.')} ({self.task.env}, {seeds})"


def panels(args: Args) -> list[Panel]:
    """Return the panels in the order of the arguments.

    Raises:
        ConfigError: there are no settings for an environment, or no seeds.
    """
    if args.seeds < 1:
        raise ConfigError(f"seeds={args.seeds} must be 1 or more (nearest: 1)")
    limits = {"total_steps": args.total_steps, "eval_episodes": args.eval_episodes}
    found = []
    for study in dict.fromkeys(args.studies):
        for env in args.compare_env_ids if study == "compare" else (args.env_id,):
            if env not in TASKS:
                raise ConfigError(
                    f"env_id={env!r} has no settings in impact_tasks.TASKS; choose "
                    f"{', '.join(TASKS)}.{nearest(env, TASKS)}"
                )
            settings = STUDIES[study](TASKS[env], **limits)
            found.append(Panel(study, TASKS[env], settings, args.seeds))
    return found


# -- tables and plots -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Ended:
    """A finished run: its line of the table and its curve."""

    row: Case
    curve: dict[str, list[float]]

    def return_at(self, seconds: float) -> float | None:
        """Return the last return at that time."""
        points = zip(self.curve["seconds"], self.curve["return"], strict=True)
        return next((y for x, y in reversed(list(points)) if x <= seconds), None)


def ended(panel: Panel, study: Study, folder: Path) -> dict[str, list[Ended]]:
    """Return the runs of each setting in the order of seeds, without settings that have no runs."""
    by_name: dict[str, list[Ended]] = {}
    for name, setting in panel.settings.items():
        for seed in range(panel.seeds):
            run = replace(setting, seed=seed)
            row = study.row(run.case)
            if row is not None:
                text = curve_path(folder, run).read_text(encoding="utf-8")
                by_name.setdefault(name, []).append(Ended(row, json.loads(text)["curve"]))
    return by_name


def summarise(panel: Panel, runs: dict[str, list[Ended]]) -> list[dict[str, Any]]:
    """Return a row per setting: mean and standard error of each measure over its runs.

    Equal time is the time at which the first of the study's runs ends.
    """
    equal_s = min((e.row["seconds"] for each in runs.values() for e in each), default=0.0)
    rows = []
    for name, each in runs.items():
        run = panel.settings[name]
        row = {"study": panel.study, "env": run.env, "setting": name, "run": run.name}
        row |= {"runs": len(each), "threshold": panel.task.threshold}
        row["reached"] = sum(e.row["steps_to"] is not None for e in each)
        row["equal_time_s"] = equal_s
        at_equal_time = [{"return_at_equal_time": e.return_at(equal_s), **e.row} for e in each]
        row |= means(at_equal_time, MEASURES)
        row |= {"total_steps": run.config["total_steps"], "batch_size": run.config["batch_size"]}
        row |= {"settings": json.dumps({**run.config, **run.hyper, **run.network})}
        rows.append(row | {"machine": machine()})
    return rows


def returns_table(row: dict[str, Any]) -> dict[str, str]:
    """Return a row of the printed table of returns."""
    return {
        "": row["setting"],
        "return": plus_minus(row, "final_return"),
        "eval": plus_minus(row, "eval_return"),
        "area": plus_minus(row, "area"),
        f"return at {row['equal_time_s']:.1f} s": plus_minus(row, "return_at_equal_time"),
    }


def speed_table(row: dict[str, Any]) -> dict[str, str]:
    """Return a row of the printed table of speed."""
    return {
        "": row["setting"],
        f"reached {row['threshold']:g}": f"{row['reached']} of {row['runs']}",
        "steps to threshold": plus_minus(row, "steps_to", 0),
        "seconds to threshold": plus_minus(row, "seconds_to"),
        "total seconds": plus_minus(row, "seconds"),
        "steps/s": plus_minus(row, "sps", 0),
        "lag": plus_minus(row, "lag_mean"),
    }


def draw(panel: Panel, runs: dict[str, list[Ended]], path: Path) -> None:
    """Plot returns against steps and against seconds."""
    axes = {"env_steps": "environment steps", "seconds": "seconds since the first update"}
    curves: dict[str, dict[str, Sequence[Curve]]] = {
        label: {
            name: [(e.curve[axis], e.curve["return"]) for e in each] for name, each in runs.items()
        }
        for axis, label in axes.items()
    }
    draw_curves(curves, panel.title, "return (last 100 episodes)", path)


def write_summary(path: Path, rows: list[dict[str, Any]]) -> None:
    """Return the rows, after those of studies that did not run this time."""
    done, kept = {(row["study"], row["env"]) for row in rows}, []
    if path.exists():
        with path.open(newline="", encoding="utf-8") as file:
            kept = [row for row in csv.DictReader(file) if (row["study"], row["env"]) not in done]
    write_csv(path, [*kept, *rows])


def report(panels_: list[Panel], study: Study, output: Path, console: Console) -> None:
    """Print the tables, and write summary.csv and the plots."""
    rows: list[dict[str, Any]] = []
    for panel in panels_:
        runs = ended(panel, study, output)
        if not runs:
            continue
        of_panel = summarise(panel, runs)
        title = f"{panel.title}; mean ± standard error"
        show([returns_table(row) for row in of_panel], title, console)
        show(
            [speed_table(row) for row in of_panel],
            f"The same runs: {panel.study}; mean ± standard error",
            console,
        )
        draw(panel, runs, output / f"{panel.study}_{panel.task.env}.png")
        rows += of_panel
    write_summary(output / "summary.csv", rows)
    console.print(f"results: {output}/runs.csv, summary.csv, curves/ and a plot per study")


def begin(args: Args, todo: list[Panel], console: Console) -> None:
    """Print what is reproduced and how it is scaled down."""
    studies = ", ".join(dict.fromkeys(panel.study for panel in todo))
    head(__doc__, f"Studies: {studies}; seeds: {args.seeds}", console)
    for task in {panel.task.env: panel.task for panel in todo}.values():
        show(task.scaled_down(args.total_steps), f"Scaled down: {task.env}", console)
    if any(panel.study == "ladder" for panel in todo):
        console.print(f"ladder: {inspect.getdoc(ladder)}", soft_wrap=True)


def main(args: Args) -> int:
    """Run missing cases, print and write results. Return 1 if runs failed."""
    console = wide_console()
    todo = panels(args)
    begin(args, todo, console)
    runs = {json.dumps(run.case): run for panel in todo for run in panel.runs}
    by_seed = sorted(runs.values(), key=lambda run: run.seed)  # stable: slow minutes affect all
    study = Study(args.output, [*by_seed[0].case, *RESULTS])

    def measured(case: Case, children: Children) -> Case:
        run = runs[json.dumps(case)]
        threshold = TASKS[run.env].threshold
        return measure(run, threshold, args.output, args.log_interval_s, children)

    study.run([run.case for run in by_seed], measured, console)
    report(todo, study, args.output, console)
    return study.status(console, "run", "seed")


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=__doc__)))
    except ConfigError as error:
        sys.exit(f"impact.py: {error}")

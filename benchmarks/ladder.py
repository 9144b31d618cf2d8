"""Ablation of APPO on LunarLander: scaling, minibatches, lag, lambda, annealing and targets.

    python benchmarks/ladder.py --seeds 5 --jobs 2 --docs docs

Every case is the recipe ``lunarlander`` with one change, over the same number of steps. Runs in
``OUTPUT/runs.jsonl`` are not repeated. The measures of a run are the mean return of the last 100
training episodes (sampled actions), and the mean of 20 episodes with the deterministic policy.
"""

from __future__ import annotations

import itertools
import json
import queue
import statistics
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from common import train_command
from learning_report import BEGIN, END, markdown

from headrace.errors import require
from headrace.processes import cores, pinned
from headrace.rundir.files import read_jsonl
from headrace.studies.children import Children
from headrace.studies.machine import wide_console

PAGE = "results/studies.md"
RUNGS: dict[str, dict[str, Any]] = {
    "the recipe": {},
    "papers' literal form": {"no_scale_free": True, "normalize_advantage": False},
    "values not normalised": {"normalize_values": False},
    "advantages not normalised": {"normalize_advantage": False},
    "observations not normalised": {"normalize_observations": False},
    "1 pass, whole batch": {"epochs": 1, "minibatches": 1},
    "1 pass, 8 minibatches": {"epochs": 1},
    "1 pass, 32 minibatches": {"epochs": 1, "minibatches": 32},
    "lag up to 4": {"max_lag": 2, "weight_sync": "every-3"},
    "lag up to 8": {"max_lag": 2, "weight_sync": "every-7"},
    "GAE": {"off_policy": "gae"},
    "clip around the learner": {"clip_around": "learner"},
    "c and rho up to 1.5": {"c_bar": 1.5, "rho_bar": 1.5},
    "lambda 0.9": {"lam": 0.9},
    "gamma 0.99": {"gamma": 0.99},
    "constant learning rate": {"lr_schedule": "constant"},
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Run the ablation; see the module's docstring."""

    seeds: int = 5
    steps: int = 300_000
    jobs: int = 1
    """Parallel runs, each on an equal share of the cores."""
    report: bool = False
    """Only report existing runs."""
    output: Path = Path("runs/ladder")
    docs: Path | None = None
    """Folder whose results/studies.md is updated with the table between its markers."""

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "jobs"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")


def measure(rung: str, seed: int, args: Args, children: Children) -> dict[str, Any]:
    """Run the command once in a temporary folder."""
    flags = {**RUNGS[rung], "recipe": "lunarlander", "seed": seed, "total_steps": args.steps}
    flags |= {"eval_episodes": 20, "log_interval_s": 0.2}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train_command("appo", run_dir, 600.0, children, **flags)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        lines = read_jsonl(run_dir / "metrics.jsonl")
    name = "charts/episodic_return"
    return {
        "rung": rung,
        "seed": seed,
        "steps": args.steps,
        "training": lines[-1][name],
        "evaluated": summary["evaluation"]["mean"],
    }


def rows(runs: list[dict[str, Any]]) -> list[dict[str, str]]:
    """Return the table: medians, and every seed's value."""

    def each(values: list[float]) -> str:
        return f"**{statistics.median(values):.0f}** ({'/'.join(f'{x:.0f}' for x in values)})"

    found = []
    for rung in RUNGS:
        mine = sorted((r for r in runs if r["rung"] == rung), key=lambda r: r["seed"])
        if mine:
            found.append({
                "change": rung,
                "training return": each([r["training"] for r in mine]),
                "evaluated": each([r["evaluated"] for r in mine]),
            })  # fmt: skip
    return found


def main(args: Args) -> None:
    """Run missing cases and report."""
    console, children, lock = wide_console(), Children(), threading.Lock()
    path = args.output / "runs.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    done = read_jsonl(path) if path.exists() else []
    done = [run for run in done if run["steps"] == args.steps and run["seed"] < args.seeds]
    have = {(run["rung"], run["seed"]) for run in done}
    todo = [(r, s) for s, r in itertools.product(range(args.seeds), RUNGS) if (r, s) not in have]
    places = queue.SimpleQueue[int]()
    for place in range(args.jobs):
        places.put(place)

    def work(case: tuple[str, int]) -> None:
        place = places.get()
        try:
            with pinned(len(cores()) // args.jobs, place):
                run = measure(*case, args, children)
        finally:
            places.put(place)
        with lock, path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(run) + "\n")
            done.append(run)
        console.print(f"{case[0]}, seed {case[1]}: {run['training']:.0f}, {run['evaluated']:.0f}")

    if not args.report:
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(work, todo))
    table = markdown(rows(done))
    console.print(table, soft_wrap=True)
    if args.docs is not None:
        page = args.docs / PAGE
        text = page.read_text(encoding="utf-8")
        before, after = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        page.write_text(f"{before}\n\n{table}\n\n{after}", encoding="utf-8")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))

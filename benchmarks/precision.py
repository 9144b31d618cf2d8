"""Effect of bfloat16 on learning: runs that differ only in ``precision`` and seed.

    python benchmarks/precision.py --seeds 10
    python benchmarks/precision.py --pixels 1 --steps 30_000    # where bfloat16 is emulated

APPO trains on ``learning_envs:Catch-v0`` with the command: 84 x 84 pixels and the network of Mnih
et al. (2015), or with ``--pixels 1`` 12 x 12 pixels and IMPALA's deep network. A run's measures are
the mean of its training return over all steps, and that of 20 evaluation episodes. The report has
all of them, medians, the probability that a bfloat16 run is better than a float32 run (95%
bootstrap interval), and the p value of the two-sided test of Mann and Whitney. Precisions take
turns. Saved runs aren't repeated, and are rejected if they were made with other settings.
"""

from __future__ import annotations

import itertools
import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from common import keep, kept, train_command
from learning_envs import CELLS
from rich.console import Console

from headrace.errors import ConfigError, require
from headrace.rundir.files import read_jsonl
from headrace.studies.children import Children
from headrace.studies.machine import machine, markdown, show, wide_console
from headrace.studies.plotting import draw_curves

ENV = "learning_envs:Catch-v0"
PRECISIONS = ("float32", "bfloat16")
FIGURES = {"area": "mean over the run", "evaluated": "evaluated"}
LIMIT_S = 7200.0
PATIENCE_S = 3600.0  # per actor, because other programs may use the machine
REPEATS = 10_000


@dataclass(frozen=True)
class Args:
    """Compare precisions; see the module's docstring."""

    seeds: int = 10
    first_seed: int = 1
    steps: int = 60_000
    pixels: int = 7
    """Pixels per side of each of Catch's 12 x 12 cells."""
    output: Path = Path("runs/precision")

    def __post_init__(self) -> None:
        for name in ("seeds", "steps", "pixels"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")


def run(precision: str, seed: int, args: Args, children: Children) -> dict:
    """Train. Return the curve and the run's measures."""
    flags: dict[str, Any] = {
        "env_id": ENV,
        "env_kwargs": json.dumps({"pixels": args.pixels}),
        "seed": seed,
        "precision": precision,
        "total_steps": args.steps,
    }
    flags["actor_timeout_s"] = PATIENCE_S
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train_command("appo", run_dir, LIMIT_S, children, **flags, log_interval_s=0.5)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        settings = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        lines = read_jsonl(run_dir / "metrics.jsonl")
    name = "charts/episodic_return"
    curve = [(line["env_steps"], line[name]) for line in lines if name in line]
    steps, values = zip(*curve, strict=True)
    area = float(np.interp(np.linspace(steps[0], args.steps, 200), steps, values).mean())
    known = {"evaluated": summary["evaluation"]["mean"], "settings": settings["config"]}
    return {"curve": curve, "area": area, **known}


def compared(ours: list[float], theirs: list[float]) -> str:
    """Return the probability that bfloat16 is better, with its interval, and the p value."""
    from scipy.stats import mannwhitneyu

    random, (x, y) = np.random.default_rng(0), map(np.asarray, (ours, theirs))

    def better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        larger, equal = x[..., :, None] > y[..., None, :], x[..., :, None] == y[..., None, :]
        return (larger + 0.5 * equal).mean((-2, -1))

    drawn = [values[random.integers(len(values), size=(REPEATS, len(values)))] for values in (x, y)]
    low, high = np.quantile(better(*drawn), [0.025, 0.975])
    return f"{better(x, y):.2f} ({low:.2f}–{high:.2f}), p = {mannwhitneyu(x, y).pvalue:.2f}"


def report(found: dict[str, list[dict]], args: Args, console: Console) -> None:
    """Write the table as text and Markdown, and the plot."""
    side = CELLS * args.pixels
    title = f"Catch, {side}x{side} pixels, {args.steps:,} steps, {args.seeds} seeds, on {machine()}"
    rows = []
    for figure, told in FIGURES.items():
        values = {name: [one[figure] for one in runs] for name, runs in found.items()}
        row = {"training return": told}
        for name, each in values.items():
            listed = "; ".join(f"{value:.2f}" for value in each)
            row[name] = f"{statistics.median(each):.2f} ({listed})"
        row["bfloat16 is better"] = compared(values["bfloat16"], values["float32"])
        rows.append(row)
    show(rows, title, console)
    (args.output / "precision.md").write_text(f"{title}\n\n{markdown(rows)}\n", encoding="utf-8")
    drawn = {name: [tuple(zip(*one["curve"], strict=True)) for one in runs]
             for name, runs in found.items()}  # fmt: skip
    path = args.output / "precision.png"
    draw_curves({"steps": drawn}, title, "training return", path)
    console.print(f"results: {args.output}/precision.md and .png")


def main(args: Args) -> int:
    """Run missing cases and report."""
    os.environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    )
    console, children = wide_console(), Children()
    found: dict[str, list[dict]] = {name: [] for name in PRECISIONS}
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    paths = {
        (seed, precision): args.output / precision / f"{seed}.json"
        for seed, precision in itertools.product(seeds, PRECISIONS)
    }
    there = {key: kept(path, args) for key, path in paths.items()}  # or no seed
    for (seed, precision), last in there.items():
        if last is None:
            last = keep(paths[seed, precision], args, run(precision, seed, args, children))
        found[precision].append(last)
        console.print(f"{precision}, seed {seed}: {last['area']:.2f} over the run, "
                      f"evaluated {last['evaluated']:.2f}")  # fmt: skip
    report(found, args, console)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args)))
    except ConfigError as error:
        sys.exit(f"precision.py: {error}")

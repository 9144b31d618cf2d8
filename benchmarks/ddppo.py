"""Scaling of synchronous distributed PPO on CartPole-v1 from one to two learners.

Three scaling studies, with one core and one thread per learner: a constant global batch of 16,384,
a batch that grows with the learners, and the small batch with which a reference implementation
measured speed-ups of 0.79 and 0.41 for two and four workers. They are compared with the fastest
settings of one learner that uses both cores.

    python benchmarks/ddppo.py [--repeats 3] [--output runs/ddppo]
"""

from __future__ import annotations

import csv
import dataclasses
import statistics
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

import headrace as hr
from headrace.studies.aggregation import grouped
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.run_table import Study, grid
from headrace.studies.scaling import command as scaling
from headrace.studies.scaling.figures import TIMES, run_figures
from headrace.studies.scaling.settings import ONE_CORE, Scaling

ALGO = hr.PPO(epochs=2, minibatches=4)
SMALL = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 64}  # batch of the reference
LARGE = {"num_actors": 1, "envs_per_actor": 2048, "fragment_length": 8}
BOTH_CORES: tuple[dict[str, Any], ...] = (  # one learner
    {"num_actors": 1, "envs_per_actor": 256, "fragment_length": 64},
    {"num_actors": 2, "envs_per_actor": 128, "fragment_length": 64},
    {"num_actors": 2, "envs_per_actor": 1024, "fragment_length": 8},
)


@dataclass(frozen=True)
class Arguments:
    """Command-line arguments."""

    repeats: int = 3
    """Runs of each setting."""
    total_iters: int = 60
    """Iterations of each run."""
    warmup_iters: int = 10
    """Iterations at the start of each run that don't count."""
    output: str = "runs/ddppo"
    """Folder for all files."""


def studies(arguments: Arguments) -> dict[str, Scaling]:
    """Return the scaling studies by name."""

    def study(name: str, sizes: tuple[int, ...], mode: Any, layout: dict[str, int]) -> Scaling:
        config = hr.Config("CartPole-v1", ALGO, eval_episodes=0, **ONE_CORE, **layout)
        return Scaling(
            world_sizes=sizes,
            repeats=arguments.repeats,
            mode=mode,
            warmup_iters=arguments.warmup_iters,
            total_iters=arguments.total_iters,
            output=f"{arguments.output}/{name}",
            config=config,
        )

    return {
        "constant": study("constant", (1, 2), "constant-batch", LARGE),
        "growing": study("growing", (1, 2), "growing-batch", LARGE),
        "reference": study("reference", (1, 2, 4), "constant-batch", SMALL),
    }


def both_cores(arguments: Arguments, console: Any) -> list[dict[str, Any]]:
    """Return steps per second of one learner with both cores, by setting."""
    columns = ("setting", "repeat", "fps")
    study = Study(Path(arguments.output) / "one-learner", columns)
    settings = [" x ".join(str(v) for v in one.values()) for one in BOTH_CORES]
    cases = grid({}, setting=settings, repeat=range(arguments.repeats))

    def measure(case: Any, children: Any) -> dict[str, float]:
        values = dict(zip(BOTH_CORES[0], map(int, case["setting"].split(" x ")), strict=True))
        with tempfile.TemporaryDirectory() as folder:
            config = hr.Config(
                "CartPole-v1", ALGO, seed=case["repeat"], eval_episodes=0, log_iterations=True,
                run_dir=f"{folder}/run", **values,
            )  # fmt: skip
            steps = config.resolved_batch_size * arguments.total_iters
            config = dataclasses.replace(config, total_steps=steps)
            scaling.train_apart(config, children, 600.0)
            warm_up = arguments.warmup_iters
            return {"fps": run_figures(Path(folder) / "run", 1, warm_up, None)["fps"]}

    study.run(cases, measure, console)
    by_setting = grouped(study.done(cases), lambda row: row["setting"])
    return [
        {"study": "both cores", "W": 1, "setting": name}
        | {"fps": statistics.median(row["fps"] for row in own)}
        for name, own in by_setting.items()
    ]


def main(arguments: Arguments) -> None:
    """Run what is missing, and print one table."""
    console = wide_console()
    head(__doc__, f"output: {arguments.output}", console)
    table: list[dict[str, Any]] = []
    for name, study in studies(arguments).items():
        scaling.run(study, console)
        with (Path(study.output) / "summary.csv").open(encoding="utf-8") as file:
            for row in csv.DictReader(file):
                times = {k: f"{1e3 * float(row[k]):.2f}" for k in TIMES}
                speedup = {"speed-up": f"{float(row['speedup_fps']):.3f}"}
                coverage = {"coverage": f"{float(row['coverage']):.3f}"}
                fps = {"fps": float(row["fps"])}
                layout = f"{study.config.envs_per_actor} x {study.config.fragment_length}"
                known = {"study": name, "W": row["world_size"], "setting": layout}
                table.append(known | fps | speedup | times | coverage)
    table += both_cores(arguments, console)
    write_csv(Path(arguments.output) / "ddppo.csv", table)
    names = list(table[0])
    texts = [
        {k: f"{row[k]:,.0f}" if k == "fps" else row.get(k, "") for k in names} for row in table
    ]
    title = "(actors x) environments x steps; milliseconds per iteration; medians over the runs"
    show(texts, title, console)
    console.print(f"table: {arguments.output}/ddppo.csv")


if __name__ == "__main__":
    main(tyro.cli(Arguments, description=__doc__))

"""Population-based training vs. a random sweep with the same budget.

    python benchmarks/pbt.py --populations 5

The task (pbt_env.py) needs large steps and broad exploration early, and small steps and little
exploration late. Both arms train the same members from the same samples of learning rate and
entropy bonus, in the same turns. Members of the sweep keep their samples. Members of the population
copy and change them as ``headrace pbt`` does. Each turn continues an ordinary run in this process.
An arm's score is that of its best member at the end: the mean reward per step without noise, at
most 1, with sampled actions. Finished populations aren't repeated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tyro
from pbt_env import LENGTH, Aim
from rich.console import Console

import headrace as hr
from headrace.api import resume_config
from headrace.errors import NonFinite
from headrace.rundir import checkpoint
from headrace.rundir.config_file import replaced
from headrace.rundir.curves import Curve
from headrace.studies import statistics
from headrace.studies.aggregation import mean_se
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.pbt.command import run as take_part
from headrace.studies.pbt.member import Member
from headrace.studies.pbt.settings import Population
from headrace.studies.plotting import draw_curves
from headrace.studies.run_table import Case, Study, fingerprint, grid

SAMPLE = ("learning_rate=loguniform:1e-4,1e-1", "entropy_coef=loguniform:1e-3,1")
ARMS = {"population": "population-based training", "sweep": "random sweep"}
NEVER = 1e9  # a lead larger than any
COLUMNS = ("arm", "seed", "settings", "best", "mean", "env_steps", "copies")


@dataclass(frozen=True)
class Args:
    """Compare the two arms; see the module's docstring."""

    populations: int = 5
    """Populations of each arm."""
    first_seed: int = 0
    """First seed."""
    members: int = 6
    """Members of a population."""
    turns: int = 24
    """Turns of a member."""
    turn_steps: int = 2560
    """Environment steps of a turn."""
    output: Path = Path("runs/pbt-benchmark")
    """Folder for the table, the plots and the runs."""


def population_of(args: Args, arm: str, seed: int) -> Population:
    """Return the settings of an arm."""
    algo = hr.A2C(lr_schedule="constant", gamma=0.0)
    config = hr.Config(
        Aim,
        algo,
        seed=1000 * seed,
        total_steps=args.turns * args.turn_steps,
        network=hr.Network(hidden=(64,)),
        transport="serial",
        num_actors=1,
        envs_per_actor=16,
        fragment_length=4,
        batch_size=64,
        eval_episodes=64,
        eval_deterministic=False,
        eval_env_kwargs={"noise": 0.0},
    )
    evolves = arm == "population"
    return Population(
        sample=SAMPLE,
        members=args.members,
        interval=args.turn_steps,
        burn_in=args.turn_steps,
        threshold=0.05 * LENGTH if evolves else NEVER,
        probability=1 / 3 if evolves else 0.0,
        output=str(args.output / "runs" / f"{arm}-{seed}"),
        config=config,
    )


def train_here(
    population: Population, member: Member, hyper: dict[str, float], until: int, children: Children
) -> dict[str, Any]:
    """Train one turn in this process."""
    turn = {"total_steps": until, **hyper}
    if checkpoint.exists(member.run_dir):
        config = resume_config(member.run_dir, trust=True, **turn)
    else:
        own = {"run_dir": str(member.run_dir), "seed": population.config.seed + member.number}
        config = replaced(population.config, {**turn, **own}).again(saved=False)
    try:
        with hr.Trainer(config, notify=lambda line: None, handle_signals=False) as trainer:
            for _ in trainer:
                pass
    except NonFinite as error:
        return {"error": str(error)}
    return {}


def measured(args: Args, case: Case) -> dict[str, Any]:
    """Train an arm. Return the results of its members."""
    population = population_of(args, case["arm"], case["seed"])
    take_part(population, Console(quiet=True), train_here)
    histories = [member.history() for member in members(population)]
    final = [history[-1].score or 0.0 for history in histories]
    return {
        "best": max(final) / LENGTH,
        "mean": sum(final) / len(final) / LENGTH,
        "env_steps": sum(history[-1].steps for history in histories),
        "copies": sum(event.kind == "copied" for history in histories for event in history),
    }


def members(population: Population) -> list[Member]:
    """Return the results of a saved population."""
    return [Member(i, population.member_dir(i)) for i in range(population.members)]


def best_curve(args: Args, arm: str, seed: int) -> Curve:
    """Return the best member's score after each turn."""
    turns: dict[int, float] = {}
    for member in members(population_of(args, arm, seed)):
        for event in member.history():
            if event.kind == "trained" and event.score is not None:
                turns[event.steps] = max(turns.get(event.steps, -math.inf), event.score / LENGTH)
    steps = sorted(turns)
    return steps, [turns[n] for n in steps]


def write(args: Args, rows: list[dict[str, Any]], console: Console) -> None:
    """Print and write the table, the difference and the plot."""
    best = {(row["arm"], row["seed"]): row["best"] for row in rows}
    both = ("best", "mean")
    seeds = sorted({seed for _, seed in best if all((arm, seed) in best for arm in ARMS)})
    table = []
    for arm, name in ARMS.items():
        of = [row for row in rows if row["arm"] == arm and row["seed"] in seeds]
        texts = {key: spelled([row[key] for row in of]) for key in both}
        table.append({"": name, "populations": len(of), **texts})
    lines = add_statistics(table, rows, seeds, both) if statistics.are_there() else []
    show(table, f"Score at the end, mean ± standard error of {len(seeds)} populations", console)
    gains = [best["population", seed] - best["sweep", seed] for seed in seeds]
    mean, se = mean_se(gains)
    console.print(f"best of the population minus best of the sweep: {spelled(gains)} "
                  f"({mean / se if se else math.nan:.1f} standard errors)")  # fmt: skip
    for line in lines:
        console.print(line)
    write_csv(args.output / "summary.csv", table)
    series = {name: [best_curve(args, arm, s) for s in seeds] for arm, name in ARMS.items()}
    title = f"Best of {args.members} members, {len(seeds)} populations"
    draw_curves({"environment steps of a member": series}, title, "score", args.output / "pbt.png")


def add_statistics(
    table: list[dict[str, Any]], rows: list[dict[str, Any]], seeds: list[int], names: Sequence[str]
) -> list[str]:
    """Add interquartile means to the table. Return the probability of improvement in words."""
    lines: list[str] = []
    pair = ("population", "sweep")
    for name in names if len(seeds) > 1 else ():
        found = {(row["arm"], row["seed"]): row[name] for row in rows}
        scores = {arm: np.array([[found[arm, seed]] for seed in seeds]) for arm in ARMS}
        middles = statistics.interquartile(scores)
        for row, arm in zip(table, ARMS, strict=True):
            row[f"{name}, interquartile mean (95%)"] = middles[arm].text()
        better = statistics.improvement(scores, [pair])[pair].text()
        lines.append(f"probability that the {name} of a population beats a sweep's: {better}")
    return lines


def spelled(values: list[float]) -> str:
    """Return mean and standard error as text."""
    mean, se = mean_se(values)
    return f"{mean:.3f} ± {se:.3f}"


def main(args: Args, console: Console) -> int:
    """Run missing populations, then report."""
    values = asdict(args) | {"output": None, "populations": None, "first_seed": None}
    settings = {"settings": fingerprint(values)}
    cases = grid(
        settings, arm=ARMS, seed=range(args.first_seed, args.first_seed + args.populations)
    )
    study = Study(args.output, COLUMNS)
    head(__doc__, f"{args.members} members, {args.turns} turns of {args.turn_steps} steps", console)

    def measure(case: Case, children: Children) -> Mapping[str, Any]:
        return measured(args, case)

    study.run(cases, measure, console)
    if rows := study.done(cases):
        write(args, rows, console)
    return study.status(console, "arm", "seed")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__), wide_console()))

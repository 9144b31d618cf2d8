r"""One agent on several tasks against an expert on each (Espeholt et al. 2018, section 5.3).

    python benchmarks/multitask.py --seeds 3
    python benchmarks/multitask.py --tasks levels-10 --algo impala --conv impala_shallow \
        --lstm 256 --agents blind --seeds 1 --envs 4 --output runs/benchmarks/levels

Four tasks whose observations and actions differ: CartPole, Acrobot, LunarLander and a Pendulum with
five torques. An expert trains on one of them for ``--task-steps``; the agent on all for as many
steps of each, with the same settings and network. Both are evaluated by the deterministic policy.
A score of 0 is the mean return of random actions and 1 that of the experts over all seeds; where
experts are no better than that, there is none. A run that has ended is not repeated, and one that
was cut short goes on; runs.csv, summary.csv and scores.png are written. The second line is the same
for ten levels that pip installs (``headrace/envs/levels.py``), as IMPALA's paper played thirty of
DeepMind Lab: shallow network, LSTM, instructions in words, and no task's number shown.

Agents: ``blind`` is not told which task it plays, ``told`` is (``--task-id``), ``values`` has
values of each task besides (``--task-id --per-task-values``).
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import tyro
from rich.console import Console

import headrace as hr
from headrace.api import resume_config
from headrace.envs.names import env_name, resolve
from headrace.envs.probe import probe
from headrace.envs.tasks import named_in
from headrace.rundir import checkpoint
from headrace.studies import statistics as of_runs
from headrace.studies.aggregation import mean_se, means, plus_minus
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.run_table import Case, Study, fingerprint, grid

TASKS = ("CartPole-v1", "Acrobot-v1", "LunarLander-v3", "multitask_envs:PendulumOfFive-v0")
AGENTS = {
    "blind": {},
    "told": {"task_id": True},
    "values": {"task_id": True, "per_task_values": True},
}
EXPERT = "expert"
COLUMNS = (
    "who",
    "seed",
    "task_steps",
    "envs",
    "tasks",
    "algo",
    "conv",
    "lstm",
    "hidden",
    "learning_rate",
    "task",
    "mean",
    "std",
    "env_steps",
)


@dataclass(frozen=True)
class Args:
    """Compare them; see the top of the file."""

    tasks: tuple[str, ...] = TASKS
    """Ids, or the name of a suite."""
    algo: Literal["appo", "impala"] = "appo"
    """With its default settings, but for what follows."""
    learning_rate: float | None = None
    """Of experts and agents; None: the algorithm's."""
    conv: Literal["auto", "nature", "impala_shallow", "impala_deep"] = "auto"
    """Layers of pictures."""
    lstm: int = 0
    """Units; 0: none."""
    agents: tuple[Literal["blind", "told", "values"], ...] = ("blind", "told", "values")
    """What they are told."""
    seeds: int = 3
    """Of each expert and agent."""
    first_seed: int = 0
    """Theirs are this one and those after it."""
    task_steps: int = 500_000
    """Environment steps of each task, of an expert and of an agent."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the perceptron, of experts and agents alike."""
    envs: int = 16
    """Environments of each task, which one actor steps, 64 steps at a time."""
    episodes: int = 50
    """Of an evaluation of each task."""
    output: Path = Path("runs/benchmarks/multitask")
    """Folder for the tables and the runs."""


def cases_of(args: Args) -> list[Case]:
    """All runs, those of one seed after each other."""
    tasks = named_in(args.tasks)
    settings = {"task_steps": args.task_steps, "envs": args.envs, "tasks": ",".join(tasks)}
    settings |= {"algo": args.algo, "conv": args.conv, "lstm": args.lstm}
    settings |= {"hidden": "-".join(map(str, args.hidden)), "learning_rate": args.learning_rate}
    whos = [f"{EXPERT} {task}" for task in tasks] + list(args.agents)
    return grid(settings, who=whos, seed=range(args.first_seed, args.first_seed + args.seeds))


def config_of(args: Args, who: str, seed: int) -> hr.Config:
    """The settings of an expert or agent."""
    tasks = named_in(args.tasks) if who in AGENTS else (who.removeprefix(f"{EXPERT} "),)
    rate = {} if args.learning_rate is None else {"learning_rate": args.learning_rate}
    algo = hr.APPO(**rate) if args.algo == "appo" else hr.IMPALA(**rate)
    core = {"core": "lstm", "core_size": args.lstm} if args.lstm else {}
    name = "".join(c if c.isalnum() else "-" for c in f"{who}-{seed}")
    which = dict.fromkeys(("output", "seeds", "first_seed", "agents"))
    name += f"-{fingerprint(asdict(args) | which)}"
    return hr.Config(
        tasks=tasks,
        algo=algo,
        num_actors=len(tasks),
        envs_per_actor=args.envs,
        fragment_length=64,
        total_steps=args.task_steps * len(tasks),
        seed=seed,
        network=hr.Network(args.hidden, conv=args.conv, **core, **AGENTS.get(who, {})),
        eval_episodes=args.episodes,
        run_dir=str(args.output / "runs" / name),
    )


def measure(args: Args, case: Case) -> list[Case]:
    """Train, or go on with a run that was cut short, and evaluate on each task.

    Raises:
        SystemExit: it was interrupted, or its evaluation failed.
    """
    config = config_of(args, case["who"], case["seed"])
    saved = checkpoint.exists(Path(str(config.run_dir)))
    config = resume_config(config.run_dir, trust=True) if saved else config.again(saved=False)
    with hr.Trainer(config, notify=lambda line: None) as trainer:
        for _ in trainer:
            pass
        summary = trainer.finish()
    if "evaluation" not in summary:
        raise SystemExit(
            f"{case['who']}, seed {case['seed']}: the run was not evaluated ({config.run_dir}); "
            "give the command again, which goes on from here"
        )
    return [
        {**case, "task": task, "mean": one["mean"], "std": one["std"],
         "env_steps": summary["env_steps"]}
        for task, one in summary["evaluation"]["tasks"].items()
    ]  # fmt: skip


def random_return(task: str, episodes: int) -> float:
    """Mean return of random actions."""
    found, returns = probe(task, "sync", {}, 0, looks_for_stacks=False), []
    envs = hr.make_vec(found.env, 1, "sync")
    envs.action_space.seed(0)
    envs.reset(seed=0)
    total, ended = 0.0, False
    while len(returns) < episodes:
        _, reward, terminated, truncated, _ = envs.step(envs.action_space.sample())
        total = 0.0 if ended else total + float(reward[0])
        ended = bool(terminated[0] or truncated[0])
        if ended:
            returns.append(total)
            total = 0.0
    envs.close()
    return statistics.fmean(returns)


def scored(rows: Sequence[Case], randoms: dict[str, float]) -> list[dict[str, Any]]:
    """A row per task and who played it: returns over seeds, and scores against the experts."""
    table = []
    for task, low in randoms.items():
        of_task = [row for row in rows if row["task"] == task]
        whos = dict.fromkeys(row["who"].partition(" ")[0] for row in of_task)
        top = statistics.fmean(r["mean"] for r in of_task if r["who"].startswith(EXPERT))
        for who in whos:
            returns = [r["mean"] for r in of_task if r["who"].partition(" ")[0] == who]
            scores = [{"score": (x - low) / (top - low) if top > low else None} for x in returns]
            found = means([{"return": x} for x in returns], ["return"]) | means(scores, ["score"])
            table.append({"task": task, "who": who, "seeds": len(returns), "random": low, **found})
    return table


def report(table: Sequence[dict[str, Any]], args: Args, console: Console) -> None:
    """Print what was found, and write it."""
    write_csv(args.output / "summary.csv", table)
    shown = [
        {
            "task": row["task"],
            "who": row["who"],
            "seeds": str(row["seeds"]),
            "random": f"{row['random']:.1f}",
            "return": plus_minus(row, "return"),
            "of the expert's score": plus_minus(row, "score", 2),
        }
        for row in table
    ]
    show(shown, "Mean ± standard error over seeds; 0: random actions, 1: the experts", console)
    for who in args.agents:
        known = [row["score"] for row in table if row["who"] == who and row["score"] is not None]
        scores = [min(1.0, score) for score in known]
        if scores:
            least, mean = min(scores), mean_se(scores)[0]
            above = sum(score > 1.0 for score in known)
            console.print(
                f"{who}: {mean:.2f} of the experts' score on average over tasks, each capped at 1; "
                f"{least:.2f} at least; better than the experts on {above} of {len(known)} tasks"
            )


def compare(rows: Sequence[Case], table: Sequence[dict[str, Any]], console: Console) -> None:
    """Over all runs, as rliable has it; of one seed, or where a task has no scores, nothing."""
    ends = {
        row["task"]: (row["random"], row["return"])
        for row in table
        if row["who"] == EXPERT and row["score"] is not None
    }
    of_who: dict[str, dict[str, list[float]]] = {}
    for row in rows:
        if row["task"] in ends:
            low, top = ends[row["task"]]
            who = of_who.setdefault(row["who"].partition(" ")[0], {})
            who.setdefault(row["task"], []).append((row["mean"] - low) / (top - low))
    counts = {len(scores) for tasks in of_who.values() for scores in tasks.values()}
    if len(counts) != 1 or counts == {1}:
        return
    scores = {who: np.array([tasks[task] for task in ends]).T for who, tasks in of_who.items()}
    pairs = [(who, EXPERT) for who in scores if who != EXPERT]
    capped = {who: np.minimum(each, 1.0) for who, each in scores.items()}
    iqm, better = of_runs.interquartile(capped), of_runs.improvement(scores, pairs)
    shown = [
        {
            "who": who,
            "interquartile mean": iqm[who].text(),
            "beats an expert": better[who, EXPERT].text() if who != EXPERT else "",
        }
        for who in scores
    ]
    title = "Over tasks and seeds, with 95% intervals (rliable): means of scores capped at 1"
    show(shown, title, console)


def draw(table: Sequence[dict[str, Any]], file: Path) -> None:
    """A bar for each task and who played it, with standard errors over seeds."""
    import matplotlib.pyplot as plt

    tasks = list(dict.fromkeys(row["task"] for row in table))
    whos = list(dict.fromkeys(row["who"] for row in table))
    figure, axes = plt.subplots(figsize=(9, 0.5 + 0.4 * len(tasks)), layout="constrained")
    height = 0.8 / len(whos)
    for i, who in enumerate(whos):
        rows = {row["task"]: row for row in table if row["who"] == who}
        scores = [rows[task]["score"] if task in rows else None for task in tasks]
        errors = [rows[task]["score_se"] if task in rows else None for task in tasks]
        places = [k + i * height for k in range(len(tasks))]
        axes.barh(
            places,
            [score or 0.0 for score in scores],
            height,
            xerr=[error or 0.0 for error in errors],
            label=who,
        )
    axes.set_yticks([k + 0.4 - height / 2 for k in range(len(tasks))], tasks)
    axes.invert_yaxis()
    axes.set_xlabel("0: random actions, 1: the experts")
    axes.legend()
    figure.savefig(file, dpi=120)
    plt.close(figure)


def main(argv: list[str] | None = None) -> int:
    """Train what is missing, and report."""
    args, console = tyro.cli(Args, args=argv), wide_console()
    tasks = named_in(args.tasks)
    settings = f"{args.task_steps:,} steps of each of {len(tasks)} tasks, {args.seeds} seeds"
    head(__doc__, settings, console)
    study = Study(args.output, COLUMNS)
    cases = cases_of(args)
    for case in study.missing(cases):
        rows = measure(args, case)
        study.append(*rows)
        told = ", ".join(f"{row['task']} {row['mean']:.1f}" for row in rows)
        console.print(f"{case['who']}, seed {case['seed']}: {told}", soft_wrap=True)
    rows = [row for row in study.rows if any(_is_of(row, case) for case in cases)]
    names = {env_name(resolve(task)): task for task in tasks}
    table = scored(rows, {k: random_return(v, args.episodes) for k, v in names.items()})
    report(table, args, console)
    draw(table, args.output / "scores.png")
    console.print(f"plot: {args.output / 'scores.png'}")
    if of_runs.are_there():
        compare(rows, table, console)
    return 0


def _is_of(row: Case, case: Case) -> bool:
    return all(row[name] == value for name, value in case.items())


if __name__ == "__main__":
    sys.exit(main())

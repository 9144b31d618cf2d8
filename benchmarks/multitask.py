r"""One agent on several tasks vs. an expert on each (Espeholt et al. 2018, section 5.3).

    python benchmarks/multitask.py --seeds 3
    python benchmarks/multitask.py --tasks levels-10 --algo impala --conv impala_shallow \
        --lstm 256 --agents blind --seeds 1 --envs 4 --output runs/benchmarks/levels

The four tasks have different observations and actions: CartPole, Acrobot, LunarLander and a
Pendulum with five torques. An expert trains on one task for ``--task-steps`` steps. The agent
trains on all tasks, with as many steps of each and the same settings and network. Both are
evaluated with the deterministic policy. A score of 0 is the mean return of random actions, and 1 is
the mean of the experts over all seeds. There is no score if experts are not better than random.
Finished runs aren't repeated, and interrupted ones are resumed. The output is runs.csv,
summary.csv and scores.png. The second command uses ten levels that pip installs
(``headrace/envs/levels.py``), as IMPALA's paper used thirty of DeepMind Lab: shallow network, LSTM,
instructions in words, and no task id in the observation.

Agents: ``blind`` doesn't observe the task, ``told`` does (``--task-id``), ``values`` also has
separate values per task (``--task-id --per-task-values``).
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
    "max_lag",
    "task",
    "mean",
    "std",
    "env_steps",
)


@dataclass(frozen=True)
class Args:
    """Compare agents and experts; see the module's docstring."""

    tasks: tuple[str, ...] = TASKS
    """Ids, or the name of a suite."""
    algo: Literal["appo", "impala"] = "appo"
    """Algorithm, with default settings except for the following."""
    learning_rate: float | None = None
    """Learning rate of experts and agents; None: the algorithm's default."""
    max_lag: int = 1
    """Greatest lag of new rollouts, in updates."""
    conv: Literal["auto", "nature", "impala_shallow", "impala_deep"] = "auto"
    """Convolutional network for images."""
    lstm: int = 0
    """Units of the LSTM; 0: no LSTM."""
    agents: tuple[Literal["blind", "told", "values"], ...] = ("blind", "told", "values")
    """Agents to train: blind, told, values."""
    seeds: int = 3
    """Number of seeds of each expert and agent."""
    first_seed: int = 0
    """First seed."""
    task_steps: int = 500_000
    """Environment steps per task, of experts and agents."""
    hidden: tuple[int, ...] = (256, 256)
    """Units of each hidden layer of the perceptron, for experts and agents."""
    envs: int = 16
    """Environments per task, stepped by one actor, 64 steps per rollout."""
    episodes: int = 50
    """Evaluation episodes per task."""
    output: Path = Path("runs/benchmarks/multitask")
    """Folder for the tables and the runs."""


def cases_of(args: Args) -> list[Case]:
    """Return all runs, ordered by seed."""
    tasks = named_in(args.tasks)
    settings = {"task_steps": args.task_steps, "envs": args.envs, "tasks": ",".join(tasks)}
    settings |= {"algo": args.algo, "conv": args.conv, "lstm": args.lstm}
    settings |= {"hidden": "-".join(map(str, args.hidden)), "learning_rate": args.learning_rate}
    settings |= {"max_lag": args.max_lag}
    whos = [f"{EXPERT} {task}" for task in tasks] + list(args.agents)
    return grid(settings, who=whos, seed=range(args.first_seed, args.first_seed + args.seeds))


def config_of(args: Args, who: str, seed: int) -> hr.Config:
    """Return the settings of an expert or agent."""
    tasks = named_in(args.tasks) if who in AGENTS else (who.removeprefix(f"{EXPERT} "),)
    own: dict[str, Any] = {"max_lag": args.max_lag}
    own |= {} if args.learning_rate is None else {"learning_rate": args.learning_rate}
    algo = hr.APPO(**own) if args.algo == "appo" else hr.IMPALA(**own)
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
    """Train, or resume an interrupted run, and evaluate on each task.

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
            "repeat the command to resume it"
        )
    return [
        {**case, "task": task, "mean": one["mean"], "std": one["std"],
         "env_steps": summary["env_steps"]}
        for task, one in summary["evaluation"]["tasks"].items()
    ]  # fmt: skip


def random_return(task: str, episodes: int) -> float:
    """Return the mean return of random actions."""
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
    """Return a row per task and agent: returns over seeds, and scores relative to the experts."""
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
    """Print and write the results."""
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
                f"minimum {least:.2f}; better than the experts on {above} of {len(known)} tasks"
            )


def compare(rows: Sequence[Case], table: Sequence[dict[str, Any]], console: Console) -> None:
    """Print rliable's aggregates over all runs; nothing with one seed or missing scores."""
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
    """Draw a bar for each task and agent, with standard errors over seeds."""
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
    """Train missing runs, and report."""
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

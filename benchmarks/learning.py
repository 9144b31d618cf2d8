"""Learning suite: headrace with default settings on each environment, vs. its peers.

    python benchmarks/learning.py --tasks CartPole-v1,Pendulum-v1 --seeds 3 --jobs 2
    python benchmarks/learning.py --groups test --seeds 3
    python benchmarks/learning.py --report --docs docs

The tasks form three groups. Defaults may be chosen on *development* and checked on *validation*;
*test* is run once per release, and its results never change a default. learning_tasks.py lists all
tasks.

It needs the extras ``box2d`` and ``bench``. Runs are saved as ``OUTPUT/TASK/PROGRAM/SEED.json``.
Saved runs aren't repeated, and interrupted runs leave nothing, so the grid can be completed in
several sittings. Programs take turns within a task and a seed, so that slow minutes affect all of
them.

headrace runs its command with ``--env-id``, ``--seed``, ``--total-steps`` and, for tasks that need
memory, ``--core lstm``. Stable-Baselines3 runs PPO: ``sb3`` with the settings that
rl-baselines3-zoo publishes, ``sb3-default`` with its own defaults. ``cleanrl`` is the
single-file PPO of learning_ppo.py with CleanRL's settings. A run stops at its limit of steps or
seconds. The clock starts with the process.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import learning_peers
import learning_ppo
import tyro
from common import train_command
from learning_report import PAGE, report
from learning_tasks import GROUPS, TASKS, Task
from rich.console import Console

from headrace.errors import ConfigError, require, require_choice
from headrace.processes import cores, pinned
from headrace.rundir.files import read_jsonl
from headrace.studies.children import Children
from headrace.studies.machine import machine, wide_console

FOLDER = Path(__file__).parent
OWN = ("a2c", "a3c", "ppo", "impala", "appo", "impact")
PEERS: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "sb3": learning_peers.train_sb3,
    "sb3-default": learning_peers.train_sb3_default,
    "cleanrl": learning_ppo.train,
}
EVAL_EPISODES = 20
NUM_POINTS = 100  # points of a curve, if the run takes all its seconds
CLOSING_S = 60.0  # seconds for headrace's last update and its checkpoint
GRACE_S = 600.0  # seconds for a peer's last update and its evaluation


@dataclass(frozen=True)
class Args:
    """Measure learning; see the module's docstring."""

    groups: str = "development,validation"
    """Comma-separated groups of tasks. Run test only to check a release."""
    tasks: str = ""
    """Comma-separated tasks, instead of groups."""
    algos: str = ",".join([*OWN, *PEERS])
    """Comma-separated: headrace's algorithms, sb3, sb3-default and cleanrl."""
    seeds: int = 5
    first_seed: int = 0
    jobs: int = 1
    """Parallel runs, each on an equal share of the cores."""
    scale: float = 1.0
    """Factor on the steps and seconds of every task."""
    report: bool = False
    """Only report existing runs."""
    output: Path = Path("runs/learning")
    """Folder for the runs, report.md and learning_suite.png."""
    docs: Path | None = None
    """Folder whose results/learning.md is updated with the report, and with the plot."""

    def __post_init__(self) -> None:
        known = {"groups": GROUPS, "tasks": ["", *TASKS], "algos": [*OWN, *PEERS]}
        for name, choices in known.items():
            for one in getattr(self, name).split(","):
                require_choice(name, one, choices)
        for name in ("seeds", "jobs"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        most = len(cores())
        require(self.jobs <= most, "jobs", self.jobs, f"at most the core count (nearest: {most})")
        require(self.scale > 0, "scale", self.scale, "above 0")
        there = self.docs is None or (self.docs / PAGE).exists()
        require(there, "docs", str(self.docs), f"a folder that has {PAGE} (nearest: docs)")


@dataclass(frozen=True)
class Case:
    """A run of the grid."""

    task: Task
    algo: str
    seed: int

    @property
    def name(self) -> str:
        """Return the path of the run's file in the output folder."""
        return f"{self.task.name}/{self.algo}/{self.seed}.json"

    @property
    def interval_s(self) -> float:
        """Return the seconds between two points of the curve."""
        return max(0.1, self.task.seconds / NUM_POINTS)


def grid(args: Args) -> list[Case]:
    """Return all runs in the order in which they take turns."""
    groups = args.groups.split(",")
    tasks = [task for task in TASKS.values() if task.group in groups]
    if args.tasks:
        tasks = [TASKS[name] for name in args.tasks.split(",")]
    scaled = [
        replace(task, steps=round(task.steps * args.scale), seconds=task.seconds * args.scale)
        for task in tasks
    ]
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    every = itertools.product(scaled, seeds, args.algos.split(","))
    return [Case(task, algo, seed) for task, seed, algo in every]


# -- one run ---------------------------------------------------------------------------------------


def run_headrace(case: Case, children: Children) -> dict[str, Any]:
    """Run ``headrace train`` in a temporary folder, and an evaluation."""
    task = case.task
    flags = {"env_id": task.env_id, "seed": case.seed, "total_steps": task.steps, **task.flags}
    reporting = {"eval_episodes": 0, "log_interval_s": case.interval_s}
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        train_command(case.algo, run_dir, task.seconds, children, CLOSING_S, **flags, **reporting)
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        if not summary["updates"]:
            raise RuntimeError(f"no update finished within {task.seconds:g} s")
        request = {"task": task.name, "run_dir": str(run_dir), "episodes": EVAL_EPISODES}
        evaluation = children.call(learning_peers.evaluate_headrace, request, GRACE_S)
        settings = json.loads((run_dir / "config.json").read_text(encoding="utf-8"))
        name, lines = "charts/episodic_return", read_jsonl(run_dir / "metrics.jsonl")
    start_s = summary["seconds_to_first_update"] - lines[0]["seconds"]
    curve = [(start_s + line["seconds"], line["env_steps"], line[name])
             for line in lines if name in line]  # fmt: skip
    known = {"env_steps": summary["env_steps"], "evaluation": evaluation, "settings": settings}
    return {"curve": curve, **known}


def run_peer(case: Case, children: Children) -> dict[str, Any]:
    """Run a peer in a separate process, which observes the limits itself."""
    request = {
        "task": case.task.name,
        "seed": case.seed,
        "steps": case.task.steps,
        "seconds": case.task.seconds,
        "interval_s": case.interval_s,
        "episodes": EVAL_EPISODES,
        "started": time.monotonic(),
    }
    return children.call(PEERS[case.algo], request, case.task.seconds + GRACE_S)


def measure(case: Case, children: Children) -> dict[str, Any]:
    """Return the contents of a run's file."""
    run = run_peer if case.algo in PEERS else run_headrace
    found = run(case, children)
    if not found["curve"]:
        raise RuntimeError(f"no episode finished within {case.task.seconds:g} s")
    names = {"task": case.task.name, "algo": case.algo, "seed": case.seed}
    final = {"training_return": found["curve"][-1][2], "commit": commit()}
    return {**names, "budget": budget_of(case, len(cores())), **final, **found}


def budget_of(case: Case, share: int) -> dict[str, float]:
    """Return the budget of a run. Only runs with equal budgets are compared."""
    return {"steps": case.task.steps, "seconds": case.task.seconds, "cores": share}


def commit() -> str:
    """Return the short commit of this repository; empty outside of a repository."""
    with contextlib.suppress(OSError, subprocess.CalledProcessError):
        command = ["git", "describe", "--always", "--dirty"]
        told = subprocess.run(command, cwd=FOLDER, capture_output=True, text=True, check=True)
        return told.stdout.strip()
    return ""


# -- the grid --------------------------------------------------------------------------------------


def missing(cases: list[Case], output: Path, share: int) -> list[Case]:
    """Return the cases without a file. ``share`` is the number of cores of a run.

    Raises:
        ConfigError: a file holds a run with another budget.
    """
    found = []
    for case in cases:
        path = output / case.name
        if not path.exists():
            found.append(case)
            continue
        budget = json.loads(path.read_text(encoding="utf-8"))["budget"]
        wanted = budget_of(case, share)
        if budget != wanted:
            raise ConfigError(
                f"{path} is a run with the budget {budget}, but this grid has {wanted}; move it "
                "away or choose another --output"
            )
    return found


def write(path: Path, run: dict[str, Any]) -> None:
    """Write all of the file or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(run) + "\n", encoding="utf-8")
    os.replace(temporary, path)


def gather(cases: list[Case], args: Args, console: Console) -> list[str]:
    """Run missing cases. Return the reasons of those that failed."""
    share, places, here = len(cores()) // args.jobs, queue.SimpleQueue[int](), machine()
    todo, failed, children = missing(cases, args.output, share), [], Children()
    for place in range(args.jobs):
        places.put(place)

    def work(case: Case) -> str:
        place = places.get()
        try:
            with pinned(share, place):
                run = measure(case, children) | {"machine": here}
        finally:
            places.put(place)
        write(args.output / case.name, run)
        seconds, steps = run["curve"][-1][0], run["env_steps"]
        evaluated = run["evaluation"]["mean"]
        return (f"{run['training_return']:.1f} training, {evaluated:.1f} evaluated, "
                f"{steps:,} steps in {seconds:.0f} s")  # fmt: skip

    console.print(f"{len(cases) - len(todo)} of {len(cases)} runs exist", soft_wrap=True)
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(ThreadPoolExecutor(args.jobs))
        stack.callback(children.end)  # before the pool waits for its threads
        stack.callback(pool.shutdown, wait=False, cancel_futures=True)
        running = {pool.submit(work, case): case for case in todo}
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                case = running.pop(future)
                try:
                    text = future.result()
                except Exception as error:  # one run is lost, the grid continues
                    text = f"{type(error).__name__}: {error}"
                    failed.append(f"{case.name}: {text}")
                count = f"[{len(todo) - len(running):>3}/{len(todo)}]"
                console.print(f"{count} {case.name[:-5]}: {text}", soft_wrap=True)
    return failed


def find_environments() -> None:
    """Add the folder of learning_envs.py to the path of child processes."""
    path = [str(FOLDER), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(path)


def main(args: Args) -> int:
    """Run missing cases, report, and print failures. Return the exit status."""
    console, failed = wide_console(), []
    if not args.report:
        find_environments()
        failed = gather(grid(args), args, console)
    args.output.mkdir(parents=True, exist_ok=True)
    report([args.output / case.name for case in grid(args)], args.output, args.docs, console)
    for text in failed:
        console.print(f"failed, run the command again to repeat it: {text}", soft_wrap=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args)))

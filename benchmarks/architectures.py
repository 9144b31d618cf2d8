"""Throughput of distributed architectures (Espeholt et al. 2018, Table 1).

    python benchmarks/architectures.py
    python benchmarks/architectures.py --network deep --step-ms 2 --cost busy
    python benchmarks/architectures.py --num-envs 16 --step-ms 2 --reset-ms 500 --cost busy
    python benchmarks/architectures.py --num-envs 4 --hosts 1 2 3

A3C, A2C that synchronises its environments at every step, A2C that synchronises its actors at
every trajectory, and IMPALA, the last two also with dynamic batching (shared inference), with the
same network, number of environments and batches, on two tasks whose time goes into the
environment:

  even     every step takes step_ms, episodes are of one length, a reset takes as long as a step
  uneven   every step takes step_ms, episode lengths are drawn from a geometric distribution (their
           standard deviation is about their mean), and every reset takes reset_ms

With ``--cost sleep`` an environment sleeps: it stands for a simulator that runs on other cores, so
that a few cores can host many actors. With ``--cost busy`` it computes on the core of its actor.
With ``--network shallow`` or ``deep`` it shows images of 72 x 96 x 3, and the networks are those of
IMPALA's Figure 3, with an LSTM of 256.

``--hosts 1 2 3`` adds the rows of several machines: A2C that synchronises trajectories, and IMPALA,
their actors on so many hosts of a network (network namespaces of this machine, each with a Ray
node; needs Linux, root, iproute2 and Ray) and their learner on the first. Every host has num_envs
actors, so more hosts act in more environments, and their batches are larger; all of them share the
cores of this machine, so let steps be slow. A3C's actors share their model's memory, so it has no
such row.

Steps are transitions; the steps that autoreset inserts don't count, but take their time. Each
figure comes from a process of its own, and start-up doesn't count. "environments alone" is
calculated: what num_envs environments give that never wait; "of alone" is the part of that, for as
many environments as a row has, that was reached.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import tyro
from common import draw_bars
from costly import Costly
from hosts import HEAD, MOST, Network, check_possible, check_spread, joined, variables
from rich.console import Console

from headrace.errors import ConfigError
from headrace.studies.aggregation import grouped, means, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.run_table import Case, Study, grid

TASKS = ("even", "uneven")
RESULTS = ("sps", "env_steps", "lag_mean", "learner_busy", "actor_busy")
START_UP_S = 120.0  # besides the measurement, until a run counts as hung
IMPALA = "IMPALA"
IN_ACTORS, IN_ONE = {"transport": "shm"}, {"transport": "serial", "num_actors": 1}
IN_ACTORS |= {"inference": "actor"}
SHARED = IN_ACTORS | {"inference": "shared"}
NETWORKS: dict[str, dict[str, Any]] = {
    "small": {},
    "shallow": {"conv": "impala_shallow", "core": "lstm", "core_size": 256},
    "deep": {"conv": "impala_deep", "core": "lstm", "core_size": 256},
}
# Name in the table: algorithm, settings of the run.
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "A3C": ("A3C", IN_ACTORS),
    "A2C, sync step": ("A2C", IN_ONE | {"engine": "async"}),
    "A2C, one process": ("A2C", IN_ONE | {"engine": "sync"}),
    "A2C, sync trajectory": ("A2C", IN_ACTORS),
    "A2C, dynamic batching": ("A2C", SHARED),
    IMPALA: ("IMPALA", IN_ACTORS),
    "IMPALA, dynamic batching": ("IMPALA", SHARED),
}
ON_HOSTS = ("A2C, sync trajectory", IMPALA)


@dataclass(frozen=True)
class Args:
    """Compare the architectures; see the top of the file."""

    num_envs: int = 8
    """Environments of each architecture; where actors are processes, also the number of actors."""
    fragment_length: int = 20
    """Steps of each environment per trajectory."""
    step_ms: float = 5.0
    """What a step takes."""
    reset_ms: float = 200.0
    """What a reset takes in the uneven task."""
    episode_length: int = 50
    """Steps of an episode; their mean in the uneven task."""
    cost: Literal["sleep", "busy"] = "sleep"
    """How the environment spends its time."""
    network: Literal["small", "shallow", "deep"] = "small"
    """small: dense layers; the others see images."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the small network."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """In which all of them compute images."""
    seconds: float = 10.0
    """How long each figure is measured."""
    warm_up_s: float = 2.0
    """Seconds after the first update that don't count."""
    repeats: int = 2
    """How often everything is measured, in turn."""
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)
    """Which rows of the table."""
    hosts: tuple[int, ...] = ()
    """Rows of so many hosts of a network as well; each has num_envs environments."""
    output: Path = Path("runs/benchmarks/architectures")
    """Folder for runs.csv, summary.csv and architectures.png."""


NOT_A_SETTING = ("repeats", "architectures", "hosts", "output")
SETTINGS = tuple(f.name for f in dataclasses.fields(Args) if f.name not in NOT_A_SETTING)
COLUMNS = ("architecture", "task", "repeat", *SETTINGS, *RESULTS)


def rows_of(args: Args) -> tuple[str, ...]:
    """The names of all rows that are measured.

    Raises:
        ConfigError: there are none for so many hosts.
    """
    if wrong := [count for count in args.hosts if not 1 <= count <= MOST]:
        raise ConfigError(f"--hosts {wrong[0]}: choose from 1 to {MOST} hosts")
    names = [f"{name}, hosts: {count}" for name in ON_HOSTS for count in args.hosts]
    return (*args.architectures, *names)


def num_hosts(architecture: str) -> int:
    """Over which its actors are spread; 0: all is on this machine, without Ray."""
    return int(architecture.partition(", hosts: ")[2] or 0)


def env_kwargs(case: Case) -> dict[str, Any]:
    """The task of a case."""
    varies = case["task"] == "uneven"
    return {
        "step_s": case["step_ms"] / 1000,
        "reset_s": case["reset_ms" if varies else "step_ms"] / 1000,
        "episode_length": case["episode_length"],
        "varies": varies,
        "busy": case["cost"] == "busy",
        "pixels": case["network"] != "small",
    }


def ideal_sps(args: Args, task: str, hosts: int = 1) -> float:
    """Steps per second of environments that never wait; busy ones share the cores."""
    from headrace.processes import num_cores

    task_kwargs = env_kwargs({"task": task} | vars(args))
    steps = task_kwargs["episode_length"]
    seconds = steps * task_kwargs["step_s"] + task_kwargs["reset_s"]
    parallel = args.num_envs * hosts
    if args.cost == "busy":
        parallel = min(parallel, num_cores())
    return parallel * steps / seconds if seconds else math.inf


def config_of(case: Case, run_dir: str) -> Any:
    """The run of a case: every architecture has the same environments, network and batches."""
    import headrace as hr

    name, _, hosts = case["architecture"].partition(", hosts: ")
    algo, settings = ARCHITECTURES[name]
    num_envs = case["num_envs"] * int(hosts or 1)
    settings = {"num_actors": num_envs, "cluster": f"ray:{HEAD}" if hosts else None} | settings
    network = NETWORKS[case["network"]] or {"hidden": tuple(case["hidden"])}
    return hr.Config(
        Costly, getattr(hr, algo)(), env_kwargs=env_kwargs(case), seed=case["repeat"],
        envs_per_actor=num_envs // settings["num_actors"],
        fragment_length=case["fragment_length"], network=hr.Network(**network),
        precision=case["precision"], batch_size=num_envs * case["fragment_length"],
        total_steps=10**12, checkpoint_interval=10**12, log_interval_s=0.2, run_dir=run_dir,
        **settings,
    )  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """One measurement in this process."""
    import headrace as hr

    first_s, begin, lags, hosts = None, None, [], num_hosts(case["architecture"])
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if hosts:
            stack.enter_context(joined(hosts * case["num_envs"]))
        config = config_of(case, f"{folder}/run")
        trainer = hr.Trainer(config, notify=lambda text: print(text, file=sys.stderr))
        for result in stack.enter_context(contextlib.closing(trainer)):
            first_s = result.seconds if first_s is None else first_s
            if begin is None:
                warm = result.seconds - first_s >= case["warm_up_s"]
                begin = result if warm else None
                continue
            lags.append(result.lag_mean or 0.0)
            if result.seconds - begin.seconds >= case["seconds"]:
                break
        busy = trainer.summary()["utilisation"]
        if hosts:
            check_spread(trainer, hosts)
    steps = result.env_steps - begin.env_steps
    return {
        "sps": steps / (result.seconds - begin.seconds),
        "env_steps": steps,
        "lag_mean": statistics.fmean(lags),
        "learner_busy": busy["learner"],
        "actor_busy": busy["actor"],
    }


def measure_apart(case: Case, children: Children) -> dict[str, Any]:
    """One measurement in a process of its own; if need be, on the first of some hosts."""
    hosts, cores = num_hosts(case["architecture"]), case["num_envs"]
    limit_s = case["seconds"] + case["warm_up_s"] + START_UP_S
    if not hosts:
        return children.call(measure, case, limit_s)
    with (
        tempfile.TemporaryDirectory() as folder,
        Network(Path(folder), os.environ).up(hosts) as net,
    ):
        for host in range(2, hosts + 1):
            net.join(host, cores)
        return children.call(measure, case, limit_s, within=net.on(1, *net.with_head(cores)))


def cases_of(args: Args) -> list[Case]:
    """All measurements, repeats outermost, so that a noisy minute hits everybody."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    repeats = range(args.repeats)
    return grid(settings, architecture=rows_of(args), task=TASKS, repeat=repeats)


def summarise(rows: list[dict[str, Any]], args: Args) -> list[dict[str, Any]]:
    """One row per architecture and task, then the environments alone."""
    summary: list[dict[str, Any]] = []
    for (name, task), own in grouped(rows, lambda r: (r["architecture"], r["task"])).items():
        found = means(own, RESULTS)
        known = {k: found[k] for k in ("sps", "sps_se", *RESULTS[1:])}
        summary.append({"architecture": name, "task": task, "runs": len(own), **known})
    summary.sort(key=lambda row: rows_of(args).index(row["architecture"]))
    peers = {row["task"]: row["sps"] for row in summary if row["architecture"] == IMPALA}
    summary += [
        {"architecture": "environments alone", "task": task, "sps": ideal_sps(args, task)}
        for task in TASKS
    ]
    for row in summary:
        row["ratio_to_impala"] = row["sps"] / peers[row["task"]] if row["task"] in peers else None
        hosts = num_hosts(row["architecture"]) or 1
        row["ratio_to_alone"] = row["sps"] / ideal_sps(args, row["task"], hosts)
    return summary


def report(summary: list[dict[str, Any]], args: Args, console: Console) -> None:
    """The table, the picture and the summary's file."""
    table: list[dict[str, Any]] = []
    bars: dict[str, dict[str, tuple[float, float]]] = {}
    for name, rows in grouped(summary, lambda row: row["architecture"]).items():
        cells = {row["task"]: row for row in rows}
        bars[name] = {task: (r["sps"], r.get("sps_se", math.nan)) for task, r in cells.items()}
        line: dict[str, Any] = {"": name}
        for task in TASKS:
            row = cells.get(task, {})
            ratio = row.get("ratio_to_impala")
            line[f"{task}: steps/s"] = plus_minus(row, "sps", 0)
            line[f"× {IMPALA} ({task})"] = "" if ratio is None else f"{ratio:.2f}"
            alone = row.get("ratio_to_alone")
            line[f"of alone ({task})"] = "" if alone is None else f"{alone:.2f}"
        table.append(line)
    title = f"Agent steps per second, {args.num_envs} environments"
    title += f"{' on each host' if args.hosts else ''}, {args.repeats} repeats"
    show(table, f"{title}, mean ± standard error", console)
    draw_bars(bars, title, "steps per second", args.output / "architectures.png")
    write_csv(args.output / "summary.csv", summary)


def main(args: Args) -> int:
    """Measure what is missing, print, and write the files; 1 if runs failed."""
    console = wide_console()
    if args.hosts:
        check_possible("--hosts")
        os.environ.update(variables())
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases = Study(args.output, COLUMNS), cases_of(args)
    study.run(cases, measure_apart, console)
    if rows := study.done(cases):
        report(summarise(rows, args), args, console)
        console.print(f"written: {args.output}/runs.csv, summary.csv, architectures.png")
    return study.status(console, "architecture", "task", "repeat")


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=__doc__)))
    except ConfigError as error:
        sys.exit(f"{Path(__file__).name}: {error}")

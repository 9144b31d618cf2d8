"""Throughput of distributed architectures (Espeholt et al. 2018, Table 1).

    python benchmarks/architectures.py
    python benchmarks/architectures.py --network deep --step-ms 2 --cost busy
    python benchmarks/architectures.py --num-envs 16 --step-ms 2 --reset-ms 500 --cost busy
    python benchmarks/architectures.py --num-envs 4 --hosts 1 2 3

The architectures are A3C, A2C that synchronises environments at every step, A2C that synchronises
actors at every trajectory, and IMPALA. The last two also run with dynamic batching (shared
inference). All have the same network, number of environments and batches. There are two tasks:

  even     every step and every reset takes step_ms, and all episodes have the same length
  uneven   every step takes step_ms, every reset takes reset_ms, and episode lengths are drawn from
           a geometric distribution (with a standard deviation about equal to the mean)

``--cost sleep``: environments sleep, like a simulator on other cores, so that a few cores can host
many actors. ``--cost busy``: environments compute on the core of their actor.
``--network shallow`` or ``deep``: images of 72 x 96 x 3 and the networks of IMPALA's Figure 3,
with an LSTM of 256 units.

``--hosts 1 2 3`` adds rows for several machines: A2C that synchronises trajectories, and IMPALA,
with actors spread over this number of hosts and the learner on the first. Hosts are network
namespaces of this machine, each with a Ray node; this needs Linux, root, iproute2 and Ray. Every
host has num_envs actors, so more hosts mean more environments and larger batches. All hosts share
the cores of this machine, so use slow steps. A3C's actors share the memory of their model and have
no such row.

Steps are transitions: autoreset steps take time but don't count. Each rate is measured in a
separate process, without start-up. "environments alone" is the calculated rate of num_envs
environments that never wait. "of alone" is the share of it that a row reaches, for its number of
environments.
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
START_UP_S = 120.0  # on top of the measurement, before a run counts as hung
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
# One optimiser step per batch, as in the paper. IMPALA's queue has room for four rollouts per actor
# (max_lag + 1), so that no actor waits for the others; A3C has no queue.
HYPERPARAMETERS: dict[str, dict[str, Any]] = {
    "A2C": {},
    "A3C": {"max_lag": 3},
    IMPALA: {"max_lag": 3, "epochs": 1, "minibatches": 1, "clip": math.inf},
}
ON_HOSTS = ("A2C, sync trajectory", IMPALA)


@dataclass(frozen=True)
class Args:
    """Compare architectures; see the module's docstring."""

    num_envs: int = 8
    """Environments per architecture, and number of actors if actors are processes."""
    fragment_length: int = 20
    """Steps per environment and trajectory."""
    step_ms: float = 5.0
    """Duration of a step in milliseconds."""
    reset_ms: float = 200.0
    """Duration of a reset of the uneven task in milliseconds."""
    episode_length: int = 50
    """Steps per episode; the mean in the uneven task."""
    cost: Literal["sleep", "busy"] = "sleep"
    """Cost of an environment step: sleeping or computing."""
    network: Literal["small", "shallow", "deep"] = "small"
    """small: dense layers; shallow, deep: convolutional networks on images."""
    hidden: tuple[int, ...] = (64, 64)
    """Hidden layers of the small network."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """Precision of convolutional networks."""
    seconds: float = 10.0
    """Seconds of each measurement."""
    warm_up_s: float = 2.0
    """Seconds after the first update that don't count."""
    repeats: int = 2
    """Number of measurements of each case, in turn."""
    architectures: tuple[str, ...] = tuple(ARCHITECTURES)
    """Rows of the table."""
    hosts: tuple[int, ...] = ()
    """Also measure on these numbers of hosts, with num_envs environments per host."""
    output: Path = Path("runs/benchmarks/architectures")
    """Folder for runs.csv, summary.csv and architectures.png."""


NOT_A_SETTING = ("repeats", "architectures", "hosts", "output")
SETTINGS = tuple(f.name for f in dataclasses.fields(Args) if f.name not in NOT_A_SETTING)
COLUMNS = ("architecture", "task", "repeat", *SETTINGS, *RESULTS)


def rows_of(args: Args) -> tuple[str, ...]:
    """Return the names of all rows.

    Raises:
        ConfigError: a number of hosts is invalid.
    """
    if wrong := [count for count in args.hosts if not 1 <= count <= MOST]:
        raise ConfigError(f"--hosts {wrong[0]} is invalid: choose 1 to {MOST} hosts")
    names = [f"{name}, hosts: {count}" for name in ON_HOSTS for count in args.hosts]
    return (*args.architectures, *names)


def num_hosts(architecture: str) -> int:
    """Return the number of hosts of the actors; 0: this machine without Ray."""
    return int(architecture.partition(", hosts: ")[2] or 0)


def env_kwargs(case: Case) -> dict[str, Any]:
    """Return the environment arguments of a case."""
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
    """Return the steps per second of environments that never wait. Busy ones share the cores."""
    from headrace.processes import num_cores

    task_kwargs = env_kwargs({"task": task} | vars(args))
    steps = task_kwargs["episode_length"]
    seconds = steps * task_kwargs["step_s"] + task_kwargs["reset_s"]
    parallel = args.num_envs * hosts
    if args.cost == "busy":
        parallel = min(parallel, num_cores())
    return parallel * steps / seconds if seconds else math.inf


def config_of(case: Case, run_dir: str) -> Any:
    """Return the settings of a case, with the same environments, network and batches for all."""
    import headrace as hr

    name, _, hosts = case["architecture"].partition(", hosts: ")
    algo, settings = ARCHITECTURES[name]
    num_envs = case["num_envs"] * int(hosts or 1)
    settings = {"num_actors": num_envs, "cluster": f"ray:{HEAD}" if hosts else None} | settings
    network = NETWORKS[case["network"]] or {"hidden": tuple(case["hidden"])}
    algorithm = getattr(hr, algo)(**HYPERPARAMETERS[algo])
    return hr.Config(
        Costly, algorithm, env_kwargs=env_kwargs(case), seed=case["repeat"],
        envs_per_actor=num_envs // settings["num_actors"],
        fragment_length=case["fragment_length"], network=hr.Network(**network),
        precision=case["precision"], batch_size=num_envs * case["fragment_length"],
        total_steps=10**12, checkpoint_interval=10**12, log_interval_s=0.2, run_dir=run_dir,
        **settings,
    )  # fmt: skip


def measure(case: Case) -> dict[str, Any]:
    """Measure once in this process."""
    import headrace as hr

    first_s, begin, lags, hosts = None, None, [], num_hosts(case["architecture"])
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        if hosts:
            stack.enter_context(joined(hosts * case["num_envs"]))
        config = config_of(case, f"{folder}/run")
        trainer = hr.Trainer(
            config, notify=lambda text: print(text, file=sys.stderr), handle_signals=False
        )
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
    """Measure once in a separate process, on the first of several hosts if the case has hosts."""
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
    """Measure all cases, with repeats in the outer loop, so that slow minutes affect all cases."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    repeats = range(args.repeats)
    return grid(settings, architecture=rows_of(args), task=TASKS, repeat=repeats)


def summarise(rows: list[dict[str, Any]], args: Args) -> list[dict[str, Any]]:
    """Return a row per architecture and task, then the rows of environments alone."""
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
    """Print the table, and write the plot and summary.csv."""
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
    """Measure missing cases, print and write results. Return 1 if runs failed."""
    console = wide_console()
    if args.hosts:
        check_possible("--hosts")
        os.environ.update(variables())
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases = Study(args.output, COLUMNS), cases_of(args)
    study.run(cases, measure_apart, console)
    if rows := study.done(cases):
        report(summarise(rows, args), args, console)
        console.print(f"results: {args.output}/runs.csv, summary.csv, architectures.png")
    return study.status(console, "architecture", "task", "repeat")


if __name__ == "__main__":
    try:
        sys.exit(main(tyro.cli(Args, description=__doc__)))
    except ConfigError as error:
        sys.exit(f"{Path(__file__).name}: {error}")

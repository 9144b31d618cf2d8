"""Shared inference (dynamic batching, Espeholt et al. 2018, section 3.1) against acting in actors.

    python benchmarks/inference.py
    python benchmarks/inference.py --crews 8x1 16x1 48x1 --networks deep --seconds 30 --repeats 3
    python benchmarks/inference.py --game Pong --networks deep --crews 4x4 16x1

IMPALA, which learns from whole batches as the paper's does, with its shallow and its deep network
(Figure 3) and an LSTM of 256, on a stand-in for DeepMind Lab whose steps compute for ``step_ms``,
or on a game of Atari; "small" is dense layers on vectors. In turns each crew of actors x
environments acts by itself and through one process. Beside steps per second stands the processor
time that a step takes in all processes of the run, which other programs on the machine change less.
The ceiling is what the cores could do if batches of half the actors acted, learnt and stepped
without any wait, from the costs that "auto" measures in the same minute; "auto" is what it chooses.
Each figure comes
from a process of its own, and start-up doesn't count.
"""

from __future__ import annotations

import contextlib
import dataclasses
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tyro
from architectures import NETWORKS, START_UP_S
from costly import Costly
from rich.console import Console

from headrace.recipes.atari import PROTOCOL
from headrace.studies.aggregation import grouped, means, plus_minus
from headrace.studies.children import Children
from headrace.studies.machine import head, show, wide_console, write_csv
from headrace.studies.run_table import Case, Study, grid

KINDS = ("actor", "shared")
RESULTS = ("sps", "cpu_ms", "lag_mean", "auto", "promised", "ceiling")


@dataclass(frozen=True)
class Args:
    """Compare who acts; see the top of the file."""

    networks: tuple[str, ...] = ("shallow", "deep")
    """Of which networks."""
    crews: tuple[str, ...] = ("8x1", "16x1", "8x4")
    """Actors x environments of each."""
    game: str = ""
    """Of Atari, by the recipe's protocol; none: a stand-in."""
    step_ms: float = 0.3
    """What a step of the stand-in computes."""
    precision: str = "bfloat16"
    """Of images."""
    max_wait_ms: float = 15.0
    """How long shared inference waits for others."""
    seconds: float = 8.0
    """How long each figure is measured."""
    warm_up_updates: int = 3
    """Updates that don't count."""
    repeats: int = 2
    """How often everything is measured, in turn."""
    output: Path = Path("runs/benchmarks/inference")
    """Folder for runs.csv and summary.csv."""


NOT_A_SETTING = ("networks", "crews", "repeats", "output")
SETTINGS = tuple(f.name for f in dataclasses.fields(Args) if f.name not in NOT_A_SETTING)
COLUMNS = ("inference", "network", "crew", "repeat", *SETTINGS, *RESULTS)


def config_of(case: Case, run_dir: str) -> Any:
    """The run of a case."""
    import headrace as hr

    actors, envs = map(int, case["crew"].split("x"))
    step_s, network = case["step_ms"] / 1000, case["network"]
    batch_size = 20 * max(16, actors * envs // 2)
    costs = {"step_s": step_s, "reset_s": step_s, "episode_length": 200, "varies": False}
    costs |= {"busy": True, "pixels": network != "small"}
    env = (f"ALE/{case['game']}-v5", PROTOCOL) if case["game"] else (Costly, costs)
    return hr.Config(
        env[0], hr.IMPALA(minibatches=1), env_kwargs=env[1],
        num_actors=actors, envs_per_actor=envs, fragment_length=20, batch_size=batch_size,
        network=hr.Network(**NETWORKS[network]), precision=case["precision"],
        auto_inference=case["inference"], max_wait_ms=case["max_wait_ms"], seed=case["repeat"],
        total_steps=10**12, checkpoint_interval=10**12, log_interval_s=0.2, run_dir=run_dir,
    )  # fmt: skip


def foreseen(config: Any, trainer: Any) -> dict[str, Any]:
    """What "auto" would choose here, by which promise, and the ceiling."""
    from headrace.envs.probe import probe
    from headrace.envs.step_cost import step_cost
    from headrace.processes import num_cores, torch_threads
    from headrace.trainer import auto_inference
    from headrace.types import SingleLearner

    policy, how = trainer.policy, (config.engine, config.env_kwargs, config.seed)
    found = probe(config.env, *how, config.wrappers)
    with torch_threads(1):
        auto = dataclasses.replace(config, inference="auto")
        auto = auto_inference.settle(auto, policy, found, SingleLearner(), lambda text: None)
        costs, env = auto_inference.measure(config, policy, found), step_cost(found.env, *how)
    assert costs is not None
    assert env is not None
    ceiling = num_cores() / (min(costs.own, costs.shared) + costs.learning + env.seconds)
    costs = costs._replace(env=env.seconds, busy=env.busy)  # not known where acting costs the same
    crew = config.num_actors, config.envs_per_actor, num_cores()
    return {
        "auto": auto.inference,
        "promised": auto_inference.gain(costs, *crew),
        "ceiling": ceiling,
    }


def processor_s() -> float:
    """Processor time of this process and all that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(case: Case) -> dict[str, Any]:
    """One measurement in this process."""
    import headrace as hr

    begin, lags = None, []
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, f"{folder}/run")
        with contextlib.closing(hr.Trainer(config, notify=lambda text: None)) as trainer:
            expected = foreseen(trainer.config, trainer)
            for result in trainer:
                if begin is None and result.updates >= case["warm_up_updates"]:
                    begin, used_s = result, processor_s()
                if begin is None:
                    continue
                lags.append(result.lag_mean or 0.0)
                if result.seconds - begin.seconds >= case["seconds"]:
                    used_s = processor_s() - used_s
                    break
    steps = result.env_steps - begin.env_steps
    found = {"sps": steps / (result.seconds - begin.seconds), "cpu_ms": 1000 * used_s / steps}
    return found | {"lag_mean": statistics.fmean(lags)} | expected


def measure_apart(case: Case, children: Children) -> dict[str, Any]:
    """One measurement in a process of its own."""
    return children.call(measure, case, case["seconds"] + START_UP_S)


def cases_of(args: Args) -> list[Case]:
    """All measurements, repeats outermost, both kinds of a crew one after the other."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    axes = {"inference": KINDS, "crew": args.crews, "network": args.networks}
    return grid(settings, **axes, repeat=range(args.repeats))


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per network and crew."""
    summary = []
    for (network, crew), own in grouped(rows, lambda r: (r["network"], r["crew"])).items():
        line: dict[str, Any] = {"network": network, "crew": crew}
        for kind in KINDS:
            found = means([row for row in own if row["inference"] == kind], ["sps", "cpu_ms"])
            line |= {kind: found["sps"], f"{kind}_se": found["sps_se"]}
            line[f"{kind}_cpu_ms"] = found["cpu_ms"]
        if line["actor"] and line["shared"]:
            line["ratio"] = line["shared"] / line["actor"]
        line["ceiling"] = statistics.median(row["ceiling"] for row in own)
        line["promised"] = statistics.median(row["promised"] for row in own)
        line["auto"] = ", ".join(sorted({row["auto"] for row in own}))
        summary.append(line)
    return sorted(summary, key=lambda line: line["network"])


def report(summary: list[dict[str, Any]], args: Args, console: Console) -> None:
    """The table and its file."""
    table = [
        {
            "network": line["network"],
            "actors x environments": line["crew"],
            "in actors": plus_minus(line, "actor", 0),
            "shared": plus_minus(line, "shared", 0),
            "ratio": f"{line['ratio']:.2f}" if "ratio" in line else "–",
            "promised": f"{line['promised']:.2f}",
            "processor ms": " → ".join(plus_minus(line, f"{kind}_cpu_ms", 2) for kind in KINDS),
            "ceiling": f"{line['ceiling']:,.0f}",
            "auto": line["auto"],
        }
        for line in summary
    ]
    show(table, f"Steps per second, mean ± standard error of {args.repeats}", console)
    write_csv(args.output / "summary.csv", summary)


def main(args: Args) -> int:
    """Measure what is missing, print, and write the files; 1 if runs failed."""
    console = wide_console()
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases = Study(args.output, COLUMNS), cases_of(args)
    study.run(cases, measure_apart, console)
    if rows := study.done(cases):
        report(summarise(rows), args, console)
    return study.status(console, "inference", "network", "crew", "repeat")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))

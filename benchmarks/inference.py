"""Shared inference (dynamic batching, Espeholt et al. 2018, section 3.1) vs. inference in actors.

    python benchmarks/inference.py
    python benchmarks/inference.py --crews 8x1 16x1 48x1 --networks deep --seconds 30 --repeats 3
    python benchmarks/inference.py --game Pong --networks deep --crews 4x4 16x1

IMPALA trains on whole batches, as in the paper, with its shallow and deep networks (Figure 3) and
an LSTM of 256 units; "small" has dense layers on vectors. The environment is a stand-in for
DeepMind Lab whose steps compute for ``step_ms``, or an Atari game. Each combination of actors x
environments ("crew") runs in turn with inference in actors and with one inference server. CPU time
per step covers all processes of the run, and depends less on other programs than the rate.

"ceiling" is the rate of the cores without any waiting, if batches of half the actors act, train and
step. It uses the costs that inference="auto" measures in the same minute. "auto" is the selected
mode. Each number comes from a separate process, without start-up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
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
    """Compare modes of inference; see the module's docstring."""

    networks: tuple[str, ...] = ("shallow", "deep")
    """Networks to measure."""
    crews: tuple[str, ...] = ("8x1", "16x1", "8x4")
    """Actors x environments of each case."""
    game: str = ""
    """Atari game with the recipe's protocol; none: a stand-in."""
    step_ms: float = 0.3
    """Computing time of a step of the stand-in in milliseconds."""
    precision: str = "bfloat16"
    """Precision of convolutional networks."""
    max_wait_ms: float = 15.0
    """Seconds that the inference server waits for more requests."""
    seconds: float = 8.0
    """Seconds of each measurement."""
    warm_up_updates: int = 3
    """Updates that don't count."""
    repeats: int = 2
    """Number of measurements of each case, in turn."""
    output: Path = Path("runs/benchmarks/inference")
    """Folder for runs.csv and summary.csv."""


NOT_A_SETTING = ("networks", "crews", "repeats", "output")
SETTINGS = tuple(f.name for f in dataclasses.fields(Args) if f.name not in NOT_A_SETTING)
COLUMNS = ("inference", "network", "crew", "repeat", *SETTINGS, *RESULTS)


def config_of(case: Case, run_dir: str) -> Any:
    """Return the settings of a case."""
    import headrace as hr

    actors, envs = map(int, case["crew"].split("x"))
    step_s, network = case["step_ms"] / 1000, case["network"]
    batch_size = 20 * max(16, actors * envs // 2)
    costs = {"step_s": step_s, "reset_s": step_s, "episode_length": 200, "varies": False}
    costs |= {"busy": True, "pixels": network != "small"}
    env = (f"ALE/{case['game']}-v5", PROTOCOL) if case["game"] else (Costly, costs)
    # Keeps all actors busy: a batch takes rollouts of at least half of them, and two are in flight.
    algo = hr.IMPALA(max_lag=1, epochs=1, minibatches=1, clip=math.inf)
    return hr.Config(
        env[0], algo, env_kwargs=env[1],
        num_actors=actors, envs_per_actor=envs, fragment_length=20, batch_size=batch_size,
        network=hr.Network(**NETWORKS[network]), precision=case["precision"],
        auto_inference=case["inference"], max_wait_ms=case["max_wait_ms"], seed=case["repeat"],
        total_steps=10**12, checkpoint_interval=10**12, log_interval_s=0.2, run_dir=run_dir,
    )  # fmt: skip


def foreseen(config: Any, trainer: Any) -> dict[str, Any]:
    """Return the choice of "auto" with its predicted gain, and the ceiling."""
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
    costs = costs._replace(env=env.seconds, busy=env.busy)  # unknown if both modes cost the same
    crew = config.num_actors, config.envs_per_actor, num_cores()
    return {
        "auto": auto.inference,
        "promised": auto_inference.gain(costs, *crew),
        "ceiling": ceiling,
    }


def processor_s() -> float:
    """Return the CPU time of this process and its descendants."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def measure(case: Case) -> dict[str, Any]:
    """Measure once in this process."""
    import headrace as hr

    begin, lags = None, []
    with tempfile.TemporaryDirectory() as folder:
        config = config_of(case, f"{folder}/run")
        with contextlib.closing(
            hr.Trainer(config, notify=lambda text: None, handle_signals=False)
        ) as trainer:
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
    """Measure once in a separate process."""
    return children.call(measure, case, case["seconds"] + START_UP_S)


def cases_of(args: Args) -> list[Case]:
    """Measure all cases, with repeats in the outer loop and both modes of a case in succession."""
    settings = {name: getattr(args, name) for name in SETTINGS}
    axes = {"inference": KINDS, "crew": args.crews, "network": args.networks}
    return grid(settings, **axes, repeat=range(args.repeats))


def summarise(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return a row per network and case."""
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
    """Print the table and write its file."""
    table = [
        {
            "network": line["network"],
            "actors x environments": line["crew"],
            "in actors": plus_minus(line, "actor", 0),
            "shared": plus_minus(line, "shared", 0),
            "ratio": f"{line['ratio']:.2f}" if "ratio" in line else "–",
            "promised": f"{line['promised']:.2f}",
            "CPU ms": " → ".join(plus_minus(line, f"{kind}_cpu_ms", 2) for kind in KINDS),
            "ceiling": f"{line['ceiling']:,.0f}",
            "auto": line["auto"],
        }
        for line in summary
    ]
    show(table, f"Steps per second, mean ± standard error of {args.repeats}", console)
    write_csv(args.output / "summary.csv", summary)


def main(args: Args) -> int:
    """Measure missing cases, print and write results. Return 1 if runs failed."""
    console = wide_console()
    head(__doc__, ", ".join(f"{name}={getattr(args, name)}" for name in SETTINGS), console)
    study, cases = Study(args.output, COLUMNS), cases_of(args)
    study.run(cases, measure_apart, console)
    if rows := study.done(cases):
        report(summarise(rows), args, console)
    return study.status(console, "inference", "network", "crew", "repeat")


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Args, description=__doc__)))

"""Training over Ray vs. shared memory on one machine, and the bottleneck.

    python benchmarks/transports.py
    python benchmarks/transports.py --cases cartpole --seconds 20 --pairs 5

The same run takes turns over both transports, in pairs of alternating order, so that slow minutes
affect both. A ratio is the median over pairs. Start-up and the first update don't count. CartPole
is APPO with rollouts of 16,384 steps; Pong (needs the extra ``atari``) is APPO with its recipe.

The table also shows how busy learner and actors are, and the CPU time per step of all processes of
the run, including Ray's. ``--cases empty`` receives rollouts of one step as fast as possible,
without training, which measures how many rollouts a learner can take.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import tyro

PLACES: dict[str, dict[str, Any]] = {"shm": {}, "ray": {"cluster": "ray"}}


@dataclass(frozen=True)
class Args:
    """Compare transports; see the module's docstring."""

    cases: tuple[str, ...] = ("cartpole", "pong", "empty")
    """Cases to run: cartpole, pong, empty."""
    seconds: float = 10.0
    """Seconds of each run."""
    pairs: int = 3
    """Number of measurements of both transports."""
    actors: int = 2
    """Actors of each run."""
    output: Path = Path("results/transports")
    """Folder for transports.json."""


def config_of(case: str, actors: int, run_dir: str, place: str) -> Any:
    """Return the config of a case."""
    import headrace as hr

    known: dict[str, Any] = {
        "num_actors": actors, "run_dir": run_dir, "total_steps": 10**9, "eval_episodes": 0,
        "log_interval_s": 0.25, **PLACES[place],
    }  # fmt: skip
    if case == "pong":
        config = hr.recipe("atari", "appo")
        sizes = {"envs_per_actor": 8 // actors, "fragment_length": 128, "batch_size": 1024}
        return hr.Config(**{**vars(config), **sizes, **known})
    sizes = {"envs_per_actor": 512, "fragment_length": 32, "batch_size": 16_384}
    if case == "empty":
        sizes = {"envs_per_actor": 1, "fragment_length": 1, "batch_size": 4}
    network = hr.Network((64, 64), "tanh", shared=False)
    algo = hr.APPO(max_lag=1, epochs=1, minibatches=1)
    return hr.Config("CartPole-v1", algo, network=network, **sizes, **known)


def cpu_s() -> float:
    """Return the CPU time of this process and its live descendants."""
    total = 0.0
    for one in [psutil.Process(), *psutil.Process().children(recursive=True)]:
        with contextlib.suppress(psutil.Error):
            total += sum(one.cpu_times()[:2])
    return total


@contextlib.contextmanager
def trained(config: Any) -> Iterator[Any]:
    """Create a trainer and run its first updates. Return it with its results."""
    import headrace as hr

    with contextlib.closing(
        hr.Trainer(config, notify=lambda text: None, handle_signals=False)
    ) as trainer:
        results = iter(trainer)
        while next(results).updates < 3:
            pass
        yield trainer, results


def measure(config: Any, seconds: float) -> dict[str, float]:
    """Return steps per second of a run, utilisation of its parts, and the cost of a step."""
    with trained(config) as (trainer, results):
        steps, cpu, start = trainer.env_steps, cpu_s(), time.monotonic()
        busy = [next(results) for _ in iter(lambda: time.monotonic() - start < seconds, False)]
        wall = time.monotonic() - start
        steps = trainer.env_steps - steps
        return {
            "sps": steps / wall,
            "cpu_us": 1e6 * (cpu_s() - cpu) / steps,
            "learner": statistics.mean(one.utilisation_learner for one in busy),
            "actors": statistics.mean(one.utilisation_actor or 0.0 for one in busy),
        }


def measure_empty(config: Any, seconds: float) -> dict[str, float]:
    """Return rollouts per second that a learner can receive, and its CPU time for each."""
    with trained(config) as (trainer, _):
        source, count, start, cpu = trainer.source, 0, time.monotonic(), time.thread_time()
        while time.monotonic() - start < seconds:
            slots = [slot for slot, _, _ in source.take(1, lambda: False)]
            source.release(slots)
            count += 1
        wall = time.monotonic() - start
        return {"sps": count / wall, "learner_us": 1e6 * (time.thread_time() - cpu) / count}


def compare(case: str, args: Args) -> dict[str, Any]:
    """Run a case repeatedly. Return the ratio of the two transports."""
    rows: dict[str, list[dict[str, float]]] = {place: [] for place in PLACES}
    for pair in range(args.pairs):
        for place in sorted(PLACES, reverse=bool(pair % 2)):
            with tempfile.TemporaryDirectory() as folder:
                config = config_of(case, args.actors, f"{folder}/run", place)
                found = (measure_empty if case == "empty" else measure)(config, args.seconds)
            rows[place].append(found)
            told = "  ".join(f"{name} {value:,.2f}" for name, value in found.items())
            print(f"{case:9} {pair} {place}  {told}", flush=True)
    ratios = [b["sps"] / a["sps"] for a, b in zip(rows["shm"], rows["ray"], strict=True)]
    print(f"{case:9} ray / shm: median {statistics.median(ratios):.2f} of "
          f"{', '.join(f'{x:.2f}' for x in ratios)}", flush=True)  # fmt: skip
    return {"runs": rows, "ratios": ratios, "ratio": statistics.median(ratios)}


def main(args: Args) -> None:
    """Measure, and write ``transports.json``."""
    from headrace.ray.connection import RayCluster
    from headrace.studies.machine import machine

    with contextlib.closing(RayCluster(None, "this benchmark", args.actors)):  # for all runs
        found = {case: compare(case, args) for case in args.cases}
    args.output.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine(), **found}, indent=2, default=str)
    (args.output / "transports.json").write_text(text + "\n")


if __name__ == "__main__":
    main(tyro.cli(Args))

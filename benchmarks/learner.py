"""Throughput of a learner alone, by network and precision, in steps and frames per second.

    python benchmarks/learner.py --device cuda
    python benchmarks/learner.py --batch-sizes 640 --networks impala_shallow

IMPALA trains on Pong with the recipe ``atari``, once per sample. An untrained policy collects a few
rollouts, and batches are made from them repeatedly. There are two rates per case: batches that are
already on the device, and batches that are assembled in CPU memory and copied while the previous
one is trained on, as in a run. Steps are four frames. Espeholt et al. (2018, Table 1) report
250,000 frames per second of DMLab with batches of 640 steps.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
import tyro
from common import keep

from headrace.actors.actor import open_collector
from headrace.config import Config
from headrace.envs.probe import Probe
from headrace.errors import require
from headrace.learner.batches import gather
from headrace.learner.learner import Learner
from headrace.processes import keep_freed_memory
from headrace.recipes.atari import atari
from headrace.studies.machine import machine, markdown, show, wide_console
from headrace.studies.stopwatch import measure_time
from headrace.trainer.policies import new_policy
from headrace.trainer.prefetch import BatchPrefetcher
from headrace.trainer.start import begin, built
from headrace.transport.slab import Slab
from headrace.types import Batch, Rollout, SingleLearner

PAPER = 250_000  # frames per second
RATE = 1e-5  # seconds of training
COLUMNS, ROLLOUTS = 32, 4  # environments of a rollout, rollouts that are collected
COLUMNS_OF_TABLE = {
    "network": "network", "precision": "precision", "batch": "batch, steps",
    "steps": "steps/s, batches there", "copied": "steps/s, batches copied",
    "frames": "frames/s", "paper": "of the paper's", "update_ms": "ms per update",
    "device_gb": "device memory, GB",
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Measure a learner alone; see the module's docstring."""

    device: str = "cpu"
    networks: tuple[str, ...] = ("nature", "impala_shallow", "impala_shallow+lstm", "impala_deep",
                                 "impala_deep+lstm")  # fmt: skip
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    batch_sizes: tuple[int, ...] = (640, 5120, 20480)
    compile: bool = False
    seconds: float = 1.5
    """Seconds of each measurement."""
    profile: bool = False
    """Print the operations of an update."""
    output: Path = Path("runs/learner")

    def __post_init__(self) -> None:
        unit = COLUMNS * atari("impala").fragment_length
        for size in self.batch_sizes:
            near = max(1, round(size / unit)) * unit
            valid = f"a multiple of {unit}, the steps of a rollout (nearest: {near})"
            require(size >= unit and size % unit == 0, "batch_sizes", size, valid)


def main() -> None:
    """Measure each combination and save the results."""
    args, rows = tyro.cli(Args), list[dict[str, Any]]()
    torch.set_num_threads(1)
    keep_freed_memory()
    for network in args.networks:
        config, found, rollouts = played(network, args)
        for precision in args.precisions:
            settings = replace(config, precision=precision)
            _, _, learner = built(settings, found, SingleLearner(), lambda line: None)
            assert isinstance(learner, Learner)
            learner.published(0)
            for batch_size in args.batch_sizes:
                count = batch_size // config.rollout_steps
                batch = list(itertools.islice(itertools.cycle(rollouts), count))
                row = {"network": network, "precision": precision, "batch": batch_size}
                row |= measured(learner, batch, batch_size, args)
                row["frames"] = round(found.frames_per_step * row["copied"])
                rows.append(row | {"paper": round(row["frames"] / PAPER, 2)})
                print(*(f"{key}={value}" for key, value in rows[-1].items()), flush=True)
            learner.close()
    shown = [{title: str(row[key]) for key, title in COLUMNS_OF_TABLE.items()} for row in rows]
    show(shown, f"a learner alone on {args.device}: {machine()}", wide_console())
    keep(args.output / "learner.json", args, {"rows": rows})
    (args.output / "report.md").write_text(markdown(shown) + "\n", encoding="utf-8")
    wide_console().print(f"results: {args.output}")


def played(network: str, args: Args) -> tuple[Config, Probe, list[Rollout]]:
    """Return settings with this network, and rollouts that it collected on the CPU."""
    conv, _, core = network.partition("+")
    recipe = atari("impala")
    config = replace(
        recipe, network=replace(recipe.network, conv=conv, core=core or None), transport="serial",
        num_actors=1, envs_per_actor=COLUMNS, batch_size=COLUMNS * recipe.fragment_length,
        device=args.device, compile=args.compile,
    )  # fmt: skip
    config, found, _ = begin(config, False, SingleLearner(), lambda line: None)
    spec = config.actor_spec(found.env, new_policy(config, found))
    envs, collector = open_collector(spec, spec.policy)
    collector.reset(0)
    rollouts = [Rollout(**tree) for tree in Slab(spec.layout(), ROLLOUTS, 1).trees]
    for rollout in rollouts:
        collector.fill(rollout, 0)
    envs.close()
    return config, found, rollouts


def measured(
    learner: Learner, rollouts: list[Rollout], batch_size: int, args: Args
) -> dict[str, Any]:
    """Return the learner's rates per second with batches of these rollouts."""
    on_cuda = learner.device.type == "cuda"
    if on_cuda:
        torch.cuda.reset_peak_memory_stats()
    there = [gather(rollouts, learner.device)]
    update_s = seconds_of(lambda: learner.update(lambda: there[0], RATE), args.seconds)
    if args.profile:
        profile(lambda: learner.update(lambda: there[0], RATE), on_cuda)
    there.clear()
    ahead = BatchPrefetcher(learner.device) if on_cuda else None

    def fresh() -> Batch:
        if ahead is None:
            return gather(rollouts, learner.device)
        batch = ahead(rollouts)
        ahead.begin(rollouts)
        return batch

    copied_s = seconds_of(lambda: learner.update(fresh, RATE), args.seconds)
    if ahead is not None:
        ahead.close()
    memory = torch.cuda.max_memory_allocated() / 1e9 if on_cuda else 0.0
    return {
        "steps": round(batch_size / update_s), "copied": round(batch_size / copied_s),
        "update_ms": round(1e3 * update_s, 2), "device_gb": round(memory, 2),
    }  # fmt: skip


def seconds_of(call: Callable[[], Any], seconds: float) -> float:
    """Return the median seconds of a call, without time in which its threads had no core."""

    def one() -> float:
        call()
        return 1.0

    return measure_time(one, seconds).wall_s


def profile(call: Callable[[], Any], on_cuda: bool) -> None:
    """Print the time of a call's operations."""
    kinds = [torch.profiler.ProfilerActivity.CPU]
    if on_cuda:
        kinds.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=kinds) as found:
        for _ in range(3):
            call()
    where = ("cuda", "cpu") if on_cuda else ("cpu",)
    for key in (f"self_{name}_time_total" for name in where):
        print(found.key_averages().table(sort_by=key, row_limit=18, max_name_column_width=60))


if __name__ == "__main__":
    main()

"""A learner alone: steps and frames per second that it learns from, by network and precision.

    python benchmarks/learner.py --device cuda
    python benchmarks/learner.py --batch-sizes 640 --networks impala_shallow

IMPALA learns from Pong by the recipe ``atari``, each sample once. A policy without training has
played a few rollouts, of which every batch is made again and again. Two figures of each: batches
that lie on the device already, and batches that are put together in the processor's memory and
copied there while the one before is learnt from, as in a run. Frames are four to a step; Espeholt
et al. (2018, Table 1) had 250,000 a second of DMLab with batches of 640 steps.
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
RATE = 1e-5  # of learning
COLUMNS, ROLLOUTS = 32, 4  # environments of a rollout, rollouts that are played
COLUMNS_OF_TABLE = {
    "network": "network", "precision": "precision", "batch": "batch, steps",
    "steps": "steps/s, batches there", "copied": "steps/s, batches copied",
    "frames": "frames/s", "paper": "of the paper's", "update_ms": "ms per update",
    "device_gb": "device memory, GB",
}  # fmt: skip


@dataclass(frozen=True)
class Args:
    """Measure a learner alone; see the top of the file."""

    device: str = "cpu"
    networks: tuple[str, ...] = ("nature", "impala_shallow", "impala_shallow+lstm", "impala_deep",
                                 "impala_deep+lstm")  # fmt: skip
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    batch_sizes: tuple[int, ...] = (640, 5120, 20480)
    compile: bool = False
    seconds: float = 1.5
    """Of each figure."""
    profile: bool = False
    """Show what an update consists of."""
    output: Path = Path("runs/learner")

    def __post_init__(self) -> None:
        unit = COLUMNS * atari("impala").fragment_length
        for size in self.batch_sizes:
            near = max(1, round(size / unit)) * unit
            valid = f"a multiple of {unit}, the steps of a rollout (nearest: {near})"
            require(size >= unit and size % unit == 0, "batch_sizes", size, valid)


def main() -> None:
    """Measure each combination and keep what was found."""
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
    """Settings with this network, and rollouts that it has played on the processor."""
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
    """What a learner does per second with batches of these rollouts."""
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
    """The median seconds of a call, without the time in which its threads had no core."""

    def one() -> float:
        call()
        return 1.0

    return measure_time(one, seconds).wall_s


def profile(call: Callable[[], Any], on_cuda: bool) -> None:
    """Print what a call's operations take."""
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

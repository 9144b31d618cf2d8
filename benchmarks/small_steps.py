"""Cost of small optimiser steps: fused gradients vs. autograd, interleaved.

    python benchmarks/small_steps.py [--seconds 12] [--threads 1]

It prints milliseconds per step by number of samples, the fixed cost of a step (intercept of a
linear fit), and samples per second of an update with one step, with 1 epoch of 32 minibatches and
with 4 epochs of 8. Times are medians without waiting for a core. Inference isn't included.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import gymnasium
import numpy as np
import torch
import tyro

import headrace as hr
from headrace.algos.common import Hyperparameters
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.processes import keep_freed_memory
from headrace.studies.stopwatch import measure_time
from headrace.types import Batch

SIZES = (32, 64, 128, 256, 512, 1024)
SPLITS = ((1, 1), (1, 8), (1, 32), (4, 8))  # passes, minibatches
ROWS, NUM_INPUTS, NUM_ACTIONS = 64, 8, 4  # a fragment of LunarLander
ALGORITHMS: dict[str, type[hr.PPO] | type[hr.APPO]] = {"PPO": hr.PPO, "APPO": hr.APPO}
WAYS = {"fused": True, "autograd": False}


@dataclass
class Flags:
    """Measure optimiser steps with few samples."""

    seconds: float = 12.0
    """Approximate seconds of the whole measurement."""
    threads: int = 1
    """Threads of the learner."""
    batch_size: int = 4096
    """Samples of an update."""
    hidden: tuple[int, ...] = (64, 64)
    """Units of each hidden layer of both networks, tanh."""


def make_batch(rows: int, columns: int) -> Batch:
    """Return a batch of random data, on-policy for a new policy except for some noise."""
    first = torch.rand(rows + 1, columns) < 0.01
    return Batch(
        obs=torch.randn(rows + 1, columns, NUM_INPUTS),
        first=first,
        action=torch.randint(NUM_ACTIONS, (rows, columns)),
        log_prob=-np.log(NUM_ACTIONS) + 0.1 * torch.randn(rows, columns),
        reward=torch.randn(rows, columns),
        terminated=torch.rand(rows, columns) < 0.01,
        valid=~first[1:],
        core=(),
        targets={},
    )


def make_learner(algorithm: Hyperparameters, flags: Flags) -> Learner:
    """Return a learner with default networks and statistics."""
    network = Network(flags.hidden, normalize_observations=True, normalize_values=True)
    spaces = gymnasium.spaces.Box(-1, 1, (NUM_INPUTS,)), gymnasium.spaces.Discrete(NUM_ACTIONS)
    learner = Learner(Policy(*spaces, network), algorithm, flags.threads)
    learner.update(lambda: make_batch(ROWS, 8), 1e-4)  # initialise the statistics
    return learner


def medians(calls: dict[tuple, Callable[[], float]], seconds: float) -> dict[tuple, float]:
    """Return milliseconds of each call: three rounds over all of them, interleaved."""
    found: dict[tuple, list[float]] = {name: [] for name in calls}
    for _ in range(3):
        for name, call in calls.items():
            found[name].append(1e3 * measure_time(call, seconds / 3 / len(calls)).wall_s)
    return {name: statistics.median(times) for name, times in found.items()}


def steps(flags: Flags) -> dict[tuple, Callable[[], float]]:
    """Measure a PPO step on one minibatch, by method and number of samples."""
    calls: dict[tuple, Callable[[], float]] = {}
    for size, (way, fused) in itertools.product(SIZES, WAYS.items()):
        algo = hr.PPO(epochs=1, minibatches=1, entropy_coef=0.01, fused=fused)
        learner = make_learner(algo, flags)
        batches = algo.batches(
            learner.policy, lambda size=size: make_batch(1, size), learner.state, learner.group
        )
        batch = next(iter(batches))
        calls[way, size] = lambda one=learner, batch=batch: len(one.step(batch, 1e-5)) > 0
    return calls


def updates(flags: Flags) -> dict[tuple, Callable[[], float]]:
    """Measure a whole update, by algorithm, method, passes and minibatches."""
    torch.manual_seed(0)
    batch = make_batch(ROWS, flags.batch_size // ROWS)
    calls: dict[tuple, Callable[[], float]] = {}
    for (name, kind), (way, fused), split in itertools.product(
        ALGORITHMS.items(), WAYS.items(), SPLITS
    ):
        sizes = dict(zip(("epochs", "minibatches"), split, strict=True))
        learner = make_learner(kind(**sizes, entropy_coef=0.01, fused=fused), flags)
        calls[name, way, split] = lambda one=learner: len(one.update(lambda: batch, 1e-5)) > 0
    return calls


def main(args: Sequence[str] | None = None) -> None:
    """Measure and print."""
    flags = tyro.cli(Flags, args=args, description=__doc__)
    torch.set_num_threads(1)
    keep_freed_memory()
    found = medians(steps(flags), flags.seconds / 3)
    print("ms per step of   " + "".join(f"{size:>9}" for size in SIZES) + "    of none   us/sample")
    for way in WAYS:
        times = [found[way, size] for size in SIZES]
        slope, fixed = np.polyfit(SIZES, times, 1)
        row = "".join(f"{ms:9.3f}" for ms in times)
        print(f"{way:16} {row} {fixed:10.3f} {1e3 * slope:11.2f}")
    found = medians(updates(flags), flags.seconds * 2 / 3)
    print(f"\nupdates of {flags.batch_size:,}      passes x minibatches     ms   samples/s"
          "   of one step's rate")  # fmt: skip
    for (name, way, split), ms in found.items():
        rate = found[name, way, (1, 1)] / ms
        print(f"{name:6} {way:10} {split[0]:>16} x {split[1]:<10} {ms:8.2f}"
              f" {1e3 * flags.batch_size / ms:11,.0f} {rate:12.2f}")  # fmt: skip


if __name__ == "__main__":
    main()

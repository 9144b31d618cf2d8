"""Speed of overlapping the gradient all-reduce with the backward pass.

    python benchmarks/overlap.py [--hosts 2] [--repeats 12]

A learner on each network host, as in benchmarks/sums.py, computes the gradient of a network in
float32 on one thread. The cases take turns: ``alone``, no sum; ``after``, headrace's method: one
sum of the whole vector when it is complete; ``gloo after``, the same with gloo's ring; ``DDP 1``
and ``DDP 25``, torch's DistributedDataParallel, which sums buckets of 1 or 25 MiB as soon as the
backward pass completes them.
"""

from __future__ import annotations

import copy
import json
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro
from sums import TIMEOUT_S, on_hosts
from torch import Tensor, nn

from headrace.distributed.ranks import Ranks
from headrace.launch.torchrun import torchrun_rendezvous
from headrace.studies.machine import machine, show, wide_console

WARM_UP = 2


@dataclass(frozen=True)
class Args:
    """Time gradients; see the module's docstring."""

    hosts: tuple[int, ...] = (2,)
    repeats: int = 12


def networks() -> dict[str, tuple[nn.Module, Tensor]]:
    """Return large networks by name, with a minibatch for each."""
    two = nn.Sequential(nn.Linear(376, 1024), nn.Tanh(), nn.Linear(1024, 1024), nn.Tanh())
    nature = nn.Sequential(
        *(nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()),
        *(nn.Conv2d(64, 64, 3), nn.ReLU(), nn.Flatten(), nn.Linear(3136, 512), nn.ReLU()),
    )
    return {
        "2 x 1024": (two.append(nn.Linear(1024, 18)), torch.randn(512, 376)),
        "Nature": (nature.append(nn.Linear(512, 7)), torch.randn(64, 4, 84, 84)),
    }


def ways_of(network: nn.Module, x: Tensor, group: Ranks) -> dict[str, Callable[[], Any]]:
    """Return functions that compute the network's gradient, summed in each way."""

    def gradient(of: nn.Module) -> None:
        of.zero_grad(set_to_none=False)
        of(x).square().mean().backward()

    def after(add_up: Callable[[Tensor], Any]) -> None:
        gradient(network)
        add_up(torch.cat([p.grad.flatten() for p in network.parameters() if p.grad is not None]))

    def buckets(mebibytes: int) -> nn.Module:
        own = copy.deepcopy(network)
        return nn.parallel.DistributedDataParallel(
            own, bucket_cap_mb=mebibytes, gradient_as_bucket_view=True
        )

    small, large = buckets(1), buckets(25)
    return {
        "alone": lambda: gradient(network),
        "after": lambda: after(group.sum),
        "gloo after": lambda: after(dist.all_reduce),
        "DDP 1": lambda: gradient(small),
        "DDP 25": lambda: gradient(large),
    }


def time_ways(folder: Path, repeats: int) -> None:
    """Run a learner. The first writes ``{network: {way: seconds}}``, medians."""
    met = torchrun_rendezvous()
    assert met is not None
    torch.set_num_threads(1)
    torch.manual_seed(0)
    group, found = Ranks(met, TIMEOUT_S), {}
    for name, (network, x) in networks().items():
        ways = ways_of(network, x, group)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(WARM_UP + repeats):
            for way, compute in ways.items():
                dist.barrier()
                start = time.perf_counter()
                compute()
                dist.barrier()
                spent[way].append(time.perf_counter() - start)
        found[name] = {way: statistics.median(s[WARM_UP:]) for way, s in spent.items()}
    if group.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    group.close()


def main(args: Args) -> int:
    """Measure and print."""
    rows = []
    for num_hosts in args.hosts:
        for name, ways in on_hosts(num_hosts, __file__, args.repeats).items():
            times = {f"{way}, ms": f"{seconds * 1e3:.1f}" for way, seconds in ways.items()}
            rows.append({"hosts": str(num_hosts), "network": name} | times)
    show(rows, f"a gradient and its sum, on {machine()}", wide_console())
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        time_ways(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(tyro.cli(Args)))

"""What a sum costs between machines, and by that what many learners would get done.

    python benchmarks/sums.py                       # 2, 3 and 4 network hosts on this machine
    python benchmarks/sums.py --hosts 2 --scaling runs/scaling  # and predict

Hosts are network namespaces (tests/launch/hosts.sh, which needs root), with a learner each, started
by torchrun. For each number of bytes the ways take turns, ten sums in a row each: ``headrace``,
what learners do; ``gather``, a message from each to each; ``all-reduce``, gloo's ring. More hosts
than cores measure how processes take turns, too: no cost is fitted to them.

``--scaling`` names folders of ``headrace bench scaling``: its model then extrapolates with the cost
of a message between hosts that was measured here, in place of its own between processes.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import tyro

from headrace.distributed.ranks import Ranks
from headrace.launch.torchrun import torchrun_rendezvous
from headrace.process import num_cores
from headrace.studies.machine import machine, show, wide_console
from headrace.studies.scaling.model import Cost, Link, Model, Timing, extrapolate, fit_allreduce

HOSTS = str(Path(__file__).parents[1] / "tests" / "launch" / "hosts.sh")
BYTES = (64, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
SUMS, WARM_UP, TIMEOUT_S = 10, 3, 300.0  # in a row; turns that don't count
PREDICTED, PARTS = (1, 2, 8, 32, 128, 512), ("rollout", "learn", "comm", "sync", "iter")


@dataclass(frozen=True)
class Args:
    """Time sums; see the top of the file."""

    hosts: tuple[int, ...] = (2, 3, 4)
    repeats: int = 11
    scaling: tuple[Path, ...] = ()


def time_ways(folder: Path, repeats: int) -> None:
    """What each learner does; the first writes ``{way: {bytes: seconds}}``, medians."""
    met = torchrun_rendezvous()
    assert met is not None
    torch.set_num_threads(1)
    group = Ranks(met, TIMEOUT_S)

    def gather(values: torch.Tensor) -> None:
        rows = [torch.empty_like(values) for _ in range(group.size)]
        dist.all_gather(rows, values)
        torch.sum(torch.stack(rows), 0, out=values)

    ways: dict[str, Callable[[torch.Tensor], Any]]
    ways = {"headrace": group.sum, "gather": gather, "all-reduce": dist.all_reduce}
    found: dict[str, dict[int, float]] = {way: {} for way in ways}
    for size in BYTES:
        values = torch.zeros(size // 4)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(WARM_UP + repeats):
            for way, add_up in ways.items():
                dist.barrier()
                start = time.perf_counter()
                for _ in range(SUMS):
                    add_up(values)
                spent[way].append((time.perf_counter() - start) / SUMS)
        for way, seconds in spent.items():
            found[way][size] = statistics.median(seconds[WARM_UP:])
    if group.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    group.close()


def on_hosts(num_hosts: int, script: str, repeats: int) -> Any:
    """Start ``script --work FOLDER REPEATS`` on so many hosts, by torchrun.

    Returns:
        what the first one wrote into ``found.json`` in that folder.
    """
    name = f"sums{os.getpid()}"
    launcher = (sys.executable, "-m", "torch.distributed.run", "--rdzv-backend", "static")
    to_first = ("--master-addr", "10.99.0.1", "--master-port", "29500")
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["bash", HOSTS, "up", name, str(num_hosts)], check=True)
        try:
            started = []
            for host in range(1, num_hosts + 1):
                here = ("--nnodes", str(num_hosts), "--node-rank", str(host - 1))
                command = ["bash", HOSTS, "run", name, str(host), *launcher, *here, *to_first]
                env = os.environ | {"GLOO_SOCKET_IFNAME": "eth0", "OMP_NUM_THREADS": "1"}
                work = [script, "--work", folder, str(repeats)]
                started.append(subprocess.Popen([*command, *work], env=env))
            for process in started:
                if process.wait(TIMEOUT_S) != 0:
                    raise RuntimeError(f"a learner ended with code {process.returncode}")
            return json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
        finally:
            subprocess.run(["bash", HOSTS, "down", name], check=True)


def cost_of(found: dict[int, dict[str, dict[str, float]]]) -> Cost | None:
    """Of a message between hosts; None if there were never as few of these as cores."""
    timings = (
        Timing("sockets", num_hosts, num_hosts <= num_cores(), int(size), seconds)
        for num_hosts, ways in found.items()
        for size, seconds in ways["headrace"].items()
    )
    return fit_allreduce(timings, "sockets")


def predicted(folder: Path, cost: Cost) -> list[dict[str, str]]:
    """What a scaling study's model says with this cost of a message between machines."""
    study = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    fitted = study["model"]
    model = Model(**fitted | {"memory": Cost(**fitted["memory"]), "sockets": cost, "link": Link()})
    first = study["measured"][0]
    rows = []
    for row in extrapolate(model, PREDICTED, (first["world_size"], first["fps"])):
        times = {
            f"{name}, ms": f"{row[f't_{name}'] * 1e3:.2f}" for name in ("comm", "sync", "iter")
        }
        speeds = {"steps/s": f"{row['fps']:,.0f}", "speed-up": f"{row['speedup_fps']:.1f}"}
        rows.append({"learners": f"{row['world_size']:.0f}"} | speeds | times)
    return rows


def main(args: Args) -> int:
    """Measure and show."""
    console, rows, found = wide_console(), [], {}
    for num_hosts in args.hosts:
        found[num_hosts] = ways = on_hosts(num_hosts, __file__, args.repeats)
        for size in map(str, BYTES):
            row = {"hosts": str(num_hosts), "bytes": f"{int(size):,}"}
            rows.append(row | {f"{way}, ms": f"{ways[way][size] * 1e3:.3f}" for way in ways})
    show(rows, f"a sum, on {machine()}", console)
    cost = cost_of(found)
    if cost is not None:
        console.print(
            f"between hosts: {cost.alpha_s * 1e6:.0f} µs a message, "
            f"{cost.beta_s * 1e9:.2f} ns a byte"
        )
        for folder in args.scaling:
            show(predicted(folder, cost), f"predicted from {folder}", console)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        time_ways(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(tyro.cli(Args)))

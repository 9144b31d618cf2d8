"""What a sum costs between machines: by recursive doubling and halving, and by gloo's own calls.

    python benchmarks/sums.py                       # 2, 3 and 4 network hosts on this machine
    python benchmarks/sums.py --hosts 2 --repeats 500

Hosts are network namespaces (tests/launch/hosts.sh, which needs root), with a learner each, started
by torchrun. For each number of bytes the ways take turns: ``headrace``, what learners do;
``gather``, a message from each to each (what they did before for small vectors); ``all-reduce``,
gloo's ring. More hosts than cores measure how processes take turns, too.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist
import tyro

from headrace.distributed.ranks import Ranks
from headrace.launch.torchrun import torchrun_rendezvous
from headrace.studies.machine import machine, show, wide_console

HOSTS = str(Path(__file__).parents[1] / "tests" / "launch" / "hosts.sh")
BYTES = (64, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
WARM_UP, TIMEOUT_S = 10, 300.0


@dataclass(frozen=True)
class Args:
    """Time sums; see the top of the file."""

    hosts: tuple[int, ...] = (2, 3, 4)
    repeats: int = 200


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

    ways = {"headrace": group.sum, "gather": gather, "all-reduce": dist.all_reduce}
    found: dict[str, dict[int, float]] = {way: {} for way in ways}
    for size in BYTES:
        values = torch.zeros(size // 4)
        spent: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(WARM_UP + (repeats if size < 1 << 20 else repeats // 10)):
            for way, add_up in ways.items():
                dist.barrier()
                start = time.perf_counter()
                add_up(values)
                spent[way].append(time.perf_counter() - start)
        for way, seconds in spent.items():
            found[way][size] = statistics.median(seconds[WARM_UP:])
    if group.rank == 0:
        (folder / "found.json").write_text(json.dumps(found), encoding="utf-8")
    group.close()


def measure(num_hosts: int, repeats: int) -> dict[str, dict[str, float]]:
    """Start a learner on each of so many hosts; returns what the first one wrote."""
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
                work = [__file__, "--work", folder, str(repeats)]
                started.append(subprocess.Popen([*command, *work], env=env))
            for process in started:
                if process.wait(TIMEOUT_S) != 0:
                    raise RuntimeError(f"a learner ended with code {process.returncode}")
            return json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
        finally:
            subprocess.run(["bash", HOSTS, "down", name], check=True)


def main(args: Args) -> int:
    """Measure and show."""
    console, rows = wide_console(), []
    for num_hosts in args.hosts:
        found = measure(num_hosts, args.repeats)
        for size in map(str, BYTES):
            row = {"hosts": str(num_hosts), "bytes": f"{int(size):,}"}
            rows.append(row | {f"{way}, ms": f"{found[way][size] * 1e3:.3f}" for way in found})
    show(rows, f"seconds of a sum, on {machine()}", console)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        time_ways(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(tyro.cli(Args)))

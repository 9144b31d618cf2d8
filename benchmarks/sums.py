"""Cost of an all-reduce between machines, and predicted scaling with many learners.

    python benchmarks/sums.py                       # 2, 3 and 4 network hosts on this machine
    python benchmarks/sums.py --hosts 2 --scaling runs/scaling  # and predict

Hosts are network namespaces (tests/launch/hosts.sh, which needs root), with one learner each,
started by torchrun. For each number of bytes the methods take turns: ``headrace``, headrace's
method; ``gather``, a message from each to each; ``all-reduce``, gloo's ring. With more hosts than
cores, the time includes scheduling, so these aren't used to fit costs.

``--scaling`` names folders of ``headrace bench scaling``. Its model then extrapolates with the cost
of a message between hosts measured here instead of the one between processes.
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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
import torch.distributed as dist
import tyro

from headrace.distributed.ranks import Ranks
from headrace.launch.torchrun import torchrun_rendezvous
from headrace.processes import num_cores
from headrace.rundir.atomic_files import write_json
from headrace.studies.machine import machine, show, wide_console
from headrace.studies.scaling.model import Cost, Link, Model, Timing, extrapolate, fit_allreduce

HOSTS = str(Path(__file__).parents[1] / "tests" / "launch" / "hosts.sh")
BYTES = (64, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
WARM_UP, TIMEOUT_S = 10, 300.0
PREDICTED, PARTS = (1, 2, 8, 32, 128, 512), ("rollout", "learn", "comm", "sync", "iter")


Found: TypeAlias = dict[int, dict[str, dict[str, float]]]  # seconds by hosts, method and bytes


@dataclass(frozen=True)
class Args:
    """Time all-reduces; see the module's docstring."""

    hosts: tuple[int, ...] = (2, 3, 4)
    repeats: int = 200
    scaling: tuple[Path, ...] = ()
    """Folders of ``headrace bench scaling`` to predict from."""
    grow: bool = False
    """Predict a batch that grows with the learners from a study of a constant batch."""
    larger: float = 1.0
    """Predict with updates of this many times as many steps, and as much waiting for each other."""
    per_machine: int | None = None
    """Predict with this number of learners per machine; None: the number of cores."""
    output: Path = Path("runs/sums.json")
    """File of measurements, which aren't repeated."""


def time_ways(folder: Path, repeats: int) -> None:
    """Run a learner. The first writes ``{method: {bytes: seconds}}``, medians."""
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


def on_hosts(num_hosts: int, script: str, repeats: int) -> Any:
    """Start ``script --work FOLDER REPEATS`` on several hosts with torchrun.

    Returns:
        what the first learner wrote into ``found.json`` in that folder.
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
                    raise RuntimeError(f"a learner exited with code {process.returncode}")
            return json.loads((Path(folder) / "found.json").read_text(encoding="utf-8"))
        finally:
            subprocess.run(["bash", HOSTS, "down", name], check=True)


def kept(path: Path) -> Found:
    """Return the measurements of an earlier call."""
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return {int(num_hosts): ways for num_hosts, ways in known.items()}


def cost_of(found: Found) -> Cost | None:
    """Fit the cost of a message between hosts; None if all cases had more hosts than cores."""
    timings = (
        Timing("sockets", num_hosts, num_hosts <= num_cores(), int(size), seconds)
        for num_hosts, ways in found.items()
        for size, seconds in ways["headrace"].items()
    )
    return fit_allreduce(timings, "sockets")


def grown(model: Model) -> Model:
    """Return a study in which each learner does the work of one alone, with proportional delays."""
    rollout, learn = ((sum(part), 0.0) for part in (model.rollout, model.learn))
    sync_s = model.largest * model.sync_s
    return replace(model, mode="growing-batch", rollout=rollout, learn=learn, sync_s=sync_s)


def asked(model: Model, args: Args) -> Model:
    """Return the model of the predicted study."""
    model = grown(model) if args.grow else model
    return replace(
        model,
        largest=args.per_machine or model.largest,
        rollout=(args.larger * model.rollout[0], args.larger * model.rollout[1]),
        learn=(args.larger * model.learn[0], args.larger * model.learn[1]),
        sync_s=args.larger * model.sync_s,
        steps=args.larger * model.steps,
    )


def predicted(folder: Path, cost: Cost, args: Args) -> list[dict[str, str]]:
    """Return predictions of a scaling study's model with this cost of a message."""
    study = json.loads((folder / "model.json").read_text(encoding="utf-8"))
    fitted, first = study["model"], study["measured"][0]
    model = Model(**fitted | {"memory": Cost(**fitted["memory"]), "sockets": cost, "link": Link()})
    model = asked(model, args)
    rows = []
    for row in extrapolate(model, PREDICTED, (first["world_size"], first["fps"])):
        times = {
            f"{name}, ms": f"{row[f't_{name}'] * 1e3:.2f}" for name in ("comm", "sync", "iter")
        }
        unwaited = row["speedup_fps"] * row["t_iter"] / (row["t_iter"] - row["t_sync"])
        speeds = {"speed-up": f"{row['speedup_fps']:.1f}", "none late": f"{unwaited:.1f}"}
        rows.append({"learners": f"{row['world_size']:.0f}"} | speeds | times)
    return rows


def main(args: Args) -> int:
    """Measure and print."""
    console, rows, found = wide_console(), [], kept(args.output)
    for num_hosts in args.hosts:
        if num_hosts not in found:
            found[num_hosts] = on_hosts(num_hosts, __file__, args.repeats)
            write_json(args.output, found)
        ways = found[num_hosts]
        for size in map(str, BYTES):
            row = {"hosts": str(num_hosts), "bytes": f"{int(size):,}"}
            rows.append(row | {f"{way}, ms": f"{ways[way][size] * 1e3:.3f}" for way in ways})
    show(rows, f"a sum, on {machine()}", console)
    cost = cost_of(found)
    if cost is not None:
        console.print(
            f"between hosts: {cost.alpha_s * 1e6:.0f} µs per message, "
            f"{cost.beta_s * 1e9:.2f} ns per byte"
        )
        for folder in args.scaling:
            rows = predicted(folder, cost, args)
            show(rows, f"predicted from {folder}", console)
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        time_ways(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        sys.exit(main(tyro.cli(Args)))

"""What one all-reduce costs: ``torch.distributed`` with gloo, W processes, messages of many sizes.

``python -m headrace.bench.allreduce REQUEST.json`` starts the W processes and writes the medians.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import timedelta
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.bench.model import Timing
from headrace.bench.processes import Processes, end_with_starter
from headrace.bench.study import Study
from headrace.config import Config, num_cores

MESSAGE_BYTES = (256, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
SMALL_BYTES, SMALL_MESSAGES = 64, 2  # counts and running statistics, besides the gradients
COLUMNS = ("world_size", "num_bytes", "repeats", "seconds")
WARM_UP, REPEATS = 20, 200
TIMEOUT_S = 300.0


def messages(config: Config, gradient_bytes: int) -> list[int]:
    """Bytes of each all-reduce of one iteration."""
    algo: Any = config.algo
    if config.algo_name in ("ppo", "appo"):
        gradients = algo.epochs * algo.minibatches
    else:
        gradients = algo.t_frequency if config.algo_name == "impact" else 1
    return [gradient_bytes] * gradients + [SMALL_BYTES] * SMALL_MESSAGES


def measure(
    study: Study,
    world_sizes: Sequence[int],
    message_bytes: Sequence[int],
    processes: Processes,
    console: Console,
    repeats: int = REPEATS,
) -> list[Timing]:
    """The timings of all world sizes above 1 and all messages; only missing ones are measured.

    Args:
        study: a table with COLUMNS. A world size that fails is said and left out.
    """
    timings = []
    for world_size in world_sizes:
        if world_size < 2:
            continue
        cases = [
            {"world_size": world_size, "num_bytes": size, "repeats": repeats}
            for size in dict.fromkeys(message_bytes)
        ]
        if missing := study.missing(cases):
            console.print(f"timing all-reduces of {world_size} processes", soft_wrap=True)
            try:
                sizes = [case["num_bytes"] for case in missing]
                seconds = _apart(world_size, sizes, repeats, study.folder, processes)
            except RuntimeError as error:
                console.print(f"all-reduces of {world_size}: {error}", soft_wrap=True)
                continue
            for case, value in zip(missing, seconds, strict=True):
                study.append({**case, "seconds": value})
        for row in study.done(cases):
            within = world_size <= num_cores()
            timings.append(Timing(world_size, within, row["num_bytes"], row["seconds"]))
    return timings


def _apart(
    world_size: int, sizes: Sequence[int], repeats: int, folder: Path, processes: Processes
) -> list[float]:
    """Median seconds for each size, measured in a session of its own."""
    with tempfile.TemporaryDirectory() as temporary:
        request, result = Path(temporary) / "request.json", Path(temporary) / "result.json"
        values = {"world_size": world_size, "sizes": list(sizes), "repeats": repeats}
        request.write_text(json.dumps(values | {"result": str(result)}), encoding="utf-8")
        output = folder / f"allreduce-w{world_size}.log"
        processes.run("headrace.bench.allreduce", [str(request)], output, TIMEOUT_S)
        return json.loads(result.read_text(encoding="utf-8"))


# -- in the session --------------------------------------------------------------------------------


def time_all_reduces(
    rank: int, world_size: int, store: str, sizes: Sequence[int], repeats: int, result: str
) -> None:
    """One of the processes; the first writes the median seconds for each size to ``result``."""
    import torch
    import torch.distributed as dist

    with contextlib.suppress(AttributeError, OSError):  # there is none on macOS
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, {cores[rank % len(cores)]})
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=timedelta(seconds=TIMEOUT_S / 2),
    )
    medians = []
    for size in sizes:
        message, times = torch.zeros(max(1, size // 4)), []
        for _ in range(WARM_UP + repeats):
            start = time.perf_counter()
            dist.all_reduce(message)
            times.append(time.perf_counter() - start)
        medians.append(statistics.median(times[WARM_UP:]))
    dist.barrier()  # nobody leaves while a neighbour still reads from him
    if rank == 0:
        Path(result).write_text(json.dumps(medians), encoding="utf-8")
    dist.destroy_process_group()


def main(path: Path) -> int:
    """Start the processes of a request and wait for them; 1 if one failed."""
    end_with_starter()
    request = json.loads(path.read_text(encoding="utf-8"))
    methods = multiprocessing.get_all_start_methods()
    context: Any = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
    if context.get_start_method() == "forkserver":
        context.set_forkserver_preload(["torch.distributed"])  # imported once, not W times
    size, rest = request["world_size"], (request["sizes"], request["repeats"], request["result"])
    store = str(path.with_name("store"))
    ranks = [
        context.Process(target=time_all_reduces, args=(rank, size, store, *rest), daemon=True)
        for rank in range(size)
    ]
    for process in ranks:
        process.start()
    running = {process.sentinel: process for process in ranks}
    while running:
        for sentinel in connection.wait(list(running)):
            process = running.pop(sentinel)
            process.join()
            if process.exitcode:  # its neighbours would wait for it
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

"""Measures the cost of an all-reduce over W processes for many message sizes."""

from __future__ import annotations

import itertools
import json
import math
import statistics
import tempfile
from collections.abc import Sequence
from multiprocessing import connection
from pathlib import Path
from typing import Any

from rich.console import Console

from headrace.algos import IMPACT, PPO
from headrace.config import Config
from headrace.processes import Child, num_cores, pinned, start_fork_server
from headrace.studies.children import Children
from headrace.studies.run_table import Study
from headrace.studies.scaling.model import Timing, Way

MESSAGE_BYTES = (256, 4 << 10, 64 << 10, 1 << 20, 4 << 20)
MOMENTS_BYTES = 24  # count, sum and sum of squares of the advantages of a minibatch
METRICS_BYTES = 512  # approximate size of a learner's metrics broadcast at the end of an update
COLUMNS = ("way", "world_size", "num_bytes", "repeats", "seconds")
WAYS: tuple[Way, ...] = ("memory", "sockets")
WARM_UP, REPEATS = 20, 200
TIMEOUT_S = 300.0
RESULT = "result.json"


def messages(config: Config, gradient_bytes: int) -> list[int]:
    """Return the bytes of each sum of one iteration: gradients, and scaled advantages."""
    algo: Any = config.settled.algo
    steps = (getattr(algo, name, 1) for name in ("epochs", "minibatches", "t_frequency"))
    gradients = math.prod(steps)
    sums = [gradient_bytes] * gradients
    if algo.normalize_advantage and isinstance(algo, PPO):
        return [*sums, gradients * MOMENTS_BYTES]  # all minibatches at once
    if algo.normalize_advantage and isinstance(algo, IMPACT):
        sums += [MOMENTS_BYTES] * gradients
    return sums


def rows_told(config: Config) -> list[int]:
    """Return the bytes that each learner broadcasts in one iteration: counts and moments."""
    settled = config.settled
    has_moments = settled.network.normalize_observations or settled.algo.normalize_returns
    return [METRICS_BYTES] * (2 if has_moments else 1)


def measure(
    study: Study,
    world_sizes: Sequence[int],
    message_bytes: Sequence[int],
    console: Console,
    repeats: int = REPEATS,
) -> list[Timing]:
    """Measure missing timings of all world sizes above 1 and all message sizes.

    Args:
        study: table with COLUMNS. A world size that fails is printed and skipped.
    """
    timings: list[Timing] = []
    for world_size, way in itertools.product(world_sizes, WAYS):
        if world_size < 2:
            continue
        cases = [
            {"way": way, "world_size": world_size, "num_bytes": size, "repeats": repeats}
            for size in dict.fromkeys(message_bytes)
        ]
        if missing := study.missing(cases):
            console.print(f"timing sums of {world_size} processes over {way}", soft_wrap=True)
            try:
                sizes = [case["num_bytes"] for case in missing]
                seconds = _apart(way, world_size, sizes, repeats, study.folder)
            except RuntimeError as error:
                console.print(f"sums of {world_size} over {way}: {error}", soft_wrap=True)
                continue
            for case, value in zip(missing, seconds, strict=True):
                study.append({**case, "seconds": value})
        within = world_size <= num_cores()
        for row in study.done(cases):
            timings.append(Timing(way, world_size, within, row["num_bytes"], row["seconds"]))
    return timings


def _apart(
    way: Way, world_size: int, sizes: Sequence[int], repeats: int, folder: Path
) -> list[float]:
    """Return the median seconds for each size, measured in a separate session."""
    request = {"way": way, "world_size": world_size, "sizes": list(sizes), "repeats": repeats}
    output = folder / f"allreduce-{way}-w{world_size}.log"
    return Children().call(time_all, request, TIMEOUT_S, output)


# -- in the session --------------------------------------------------------------------------------


def time_sums(rank: int, folder: Path, request: dict[str, Any], pipe: object) -> None:
    """Time sums in one of the processes; rank 0 writes the medians."""
    import torch

    from headrace.distributed.ranks import Ranks, file_rendezvous

    way = request["way"]
    with pinned(1, rank):
        met = file_rendezvous(str(folder / "store"), rank, request["world_size"])
        group = Ranks(met, TIMEOUT_S / 2, share_memory=way == "memory")
        if group.shares_memory != (way == "memory"):
            raise RuntimeError("there is no shared memory for the processes")
        medians = []
        for size in request["sizes"]:
            message, group.clock.waits = torch.zeros(max(1, size // 4)), []
            for _ in range(WARM_UP + request["repeats"]):
                group.sum(message)
            medians.append(statistics.median(group.clock.waits[WARM_UP:]))
        group.broadcast(None)  # no rank leaves while another one still reads from it
        if rank == 0:
            (folder / RESULT).write_text(json.dumps(medians), encoding="utf-8")
        group.close()


def time_all(request: dict[str, Any]) -> list[float]:
    """Return the median seconds for each size; raises RuntimeError if a process failed."""
    start_fork_server("headrace.distributed.ranks")  # imported once, not W times
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        children = [
            Child(f"headrace-sums-{rank}", time_sums, rank, folder, request, nice=False)
            for rank in range(request["world_size"])
        ]
        running: dict[Any, Any] = {child.process.sentinel: child.process for child in children}
        while running:
            for sentinel in connection.wait(list(running)):
                process = running.pop(sentinel)
                process.join()
                if process.exitcode:  # the other ranks would wait for it
                    raise RuntimeError(f"one of them ended with code {process.exitcode}")
        return json.loads((folder / RESULT).read_text(encoding="utf-8"))

"""What a job asks SLURM for, and the batch script that asks for it."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.errors import ConfigError
from headrace.provision.orders import Orders
from headrace.valid import ranges
from headrace.valid.fields import check_fields, settings

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
TIME = ranges.Valid(
    'minutes, "hours:minutes:seconds" or "days-hours", as sbatch takes them',
    lambda text: bool(_TIME.fullmatch(text)),
)
ARRAY = ranges.Valid(
    'numbers and ranges of them, as in "0-3" or "1,5,7" ("0-7%2": two at a time)',
    lambda text: bool(re.fullmatch(r"\d+(-\d+)?(:\d+)?(,\d+(-\d+)?)*(%\d+)?", text)),
)
OPTION = ranges.Valid('NAME or NAME=VALUE, as in "account=physics"', lambda x: x and x[0] != "-")
NAME = ranges.Valid("letters, digits, - . and _", lambda x: bool(re.fullmatch(r"[\w.-]+", x)))


@settings()
@dataclass(frozen=True)
class Job:
    """What a job asks SLURM for."""

    nodes: Annotated[int, ranges.NODES] = 1
    """Nodes of the job, each with one Ray node."""
    partition: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Where it queues; None: where the cluster puts jobs by itself."""
    time_limit: Annotated[str | None, TIME] = None
    """Of the job: minutes, "hours:minutes:seconds" or "days-hours"; None: the partition's."""
    gpus_per_node: Annotated[int, ranges.COUNT_OR_0] = 0
    """GPUs of each node."""
    cpus_per_node: Annotated[int | None, ranges.COUNT] = None
    """Processors of each node; None: the nodes are the job's alone."""
    memory_per_node: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Of each node, as in "16G"; None: all of it where nodes are the job's alone, else what the
    cluster gives by itself."""
    job_name: Annotated[str, NAME] = "headrace"
    """What squeue shows."""
    array: Annotated[str | None, ARRAY] = None
    """A job for each of these seeds, as in "0-3"."""
    option: tuple[Annotated[str, OPTION], ...] = ()
    """Any other of sbatch's options, as in account=physics; may be repeated."""
    start_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """For Ray to be up on all nodes, once the job has left the queue."""
    stop_before_s: Annotated[int, ranges.COUNT] = 120
    """So long before the time limit a run is told to save and end; then the job queues again."""
    requeue: bool = True
    """Queue again, and go on, after preemption, the time limit and the loss of a node."""

    def __post_init__(self) -> None:
        check_fields(self, "slurm: ")
        limit_s = _seconds(self.time_limit)
        if limit_s is not None and limit_s <= self.stop_before_s:
            raise ConfigError(
                f"slurm: stop_before_s={self.stop_before_s} must be below "
                f"time_limit={self.time_limit!r}, which is {limit_s} s (nearest: {limit_s // 2})"
            )


def _seconds(time_limit: str | None) -> int | None:
    """As sbatch reads it: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    found = _TIME.fullmatch(time_limit or "")
    if found is None:
        return None
    days, *rest = (None if part is None else int(part) for part in found.groups())
    parts = [part for part in rest if part is not None]
    if days is None and len(parts) < 3:  # minutes, and seconds
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def script(job: Job, orders: Orders, log: str) -> str:
    """The batch script; ``log`` is the file of all output, a pattern as sbatch takes it."""
    asked: dict[str, Any] = {
        "job-name": job.job_name,
        "nodes": job.nodes,
        "ntasks-per-node": 1,
        "output": log,
        "open-mode": "append",
        "export": "ALL",
        "signal": f"B:USR1@{job.stop_before_s}",
        "requeue" if job.requeue else "no-requeue": None,
        "partition": job.partition,
        "time": job.time_limit,
        "array": job.array,
        "cpus-per-task": job.cpus_per_node,
        "mem": job.memory_per_node,
        "gpus-per-node": job.gpus_per_node or None,
    }
    if job.cpus_per_node is None:
        asked |= {"exclusive": "", "mem": job.memory_per_node or "0"}
    switches = ("requeue", "no-requeue")
    lines = [
        f"#SBATCH --{name}" + (f"={value}" if value not in (None, "") else "")
        for name, value in asked.items()
        if value is not None or name in switches
    ]
    lines += [f"#SBATCH --{option}" for option in job.option]
    program = shlex.join([sys.executable, "-m", "headrace.provision.slurm.head"])
    ends = f"cd {shlex.quote(os.getcwd())} || exit", f"exec {program} <<'ORDERS'"
    return "\n".join(["#!/bin/sh", *lines, *ends, orders.write(), "ORDERS", ""])

"""Resources of a SLURM job, and its batch script."""

from __future__ import annotations

import math
import os
import re
import sys
from dataclasses import dataclass
from typing import Annotated

from headrace.errors import ConfigError
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.rendering import rendered
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

_TIME = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?")
_OPTION = re.compile(r"[A-Za-z][\w-]*(=[^\x00-\x1f\x7f]*)?")
TIME = ranges.Constraint(
    'minutes, "hours:minutes:seconds" or "days-hours", as sbatch takes them',
    lambda text: bool(_TIME.fullmatch(text)),
)
ARRAY = ranges.Constraint(
    'numbers and ranges of them, as in "0-3" or "1,5,7" ("0-7%2": two at a time)',
    lambda text: bool(re.fullmatch(r"\d+(-\d+)?(:\d+)?(,\d+(-\d+)?)*(%\d+)?", text)),
)
OPTION = ranges.Constraint(
    'NAME or NAME=VALUE, as in "account=physics", without line breaks, and not signal, which is '
    "stop_before_s",
    lambda text: bool(_OPTION.fullmatch(text)) and not text.startswith("signal"),
)
LINE = ranges.Constraint("not empty, and one line", lambda x: bool(x) and x.isprintable())
NAME = ranges.Constraint("letters, digits, - . and _", lambda x: bool(re.fullmatch(r"[\w.-]+", x)))


@settings()
@dataclass(frozen=True)
class Job:
    """Resources requested from SLURM for a job."""

    nodes: Annotated[int, ranges.NODES] = 1
    """Number of nodes, each with one Ray node."""
    partition: Annotated[str | None, LINE] = None
    """Partition of the job; None: the cluster's default."""
    time_limit: Annotated[str | None, TIME] = None
    """Time limit: minutes, "hours:minutes:seconds" or "days-hours"; None: the partition's."""
    gpus_per_node: Annotated[int, ranges.COUNT_OR_0] = 0
    """Number of GPUs per node."""
    cpus_per_node: Annotated[int | None, ranges.COUNT] = None
    """Number of processors per node; None: request exclusive nodes."""
    memory_per_node: Annotated[str | None, LINE] = None
    """Memory per node, as in "16G"; None: all of it on exclusive nodes, else the cluster's
    default.
    """
    job_name: Annotated[str, NAME] = "headrace"
    """Job name in squeue."""
    array: Annotated[str | None, ARRAY] = None
    """Array of seeds with a job each, as in "0-3"."""
    option: tuple[Annotated[str, OPTION], ...] = ()
    """Further option of sbatch, as in account=physics; may be repeated."""
    start_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """Startup timeout of Ray on all nodes, in seconds, once the job has left the queue."""
    stop_before_s: Annotated[int, ranges.COUNT] = 120
    """Seconds before the time limit at which a run is stopped to save; then the job is requeued."""
    requeue: bool = True
    """Requeue and resume after preemption, the time limit or the loss of a node."""

    @property
    def num_jobs(self) -> int:
        """Number of jobs of the array; 1 without an array."""
        if self.array is None:
            return 1
        seeds: set[int] = set()
        for part in self.array.partition("%")[0].split(","):
            numbers, _, step = part.partition(":")
            first, _, last = numbers.partition("-")
            seeds.update(range(int(first), int(last or first) + 1, int(step or 1)))
        return len(seeds)

    def __post_init__(self) -> None:
        check_fields(self, "slurm: ")
        limit_s = _seconds(self.time_limit)
        if limit_s is not None and limit_s <= self.stop_before_s:
            raise ConfigError(
                f"slurm: stop_before_s={self.stop_before_s} must be below "
                f"time_limit={self.time_limit!r}, which is {limit_s} s (nearest: {limit_s // 2})"
            )

    @property
    def resources(self) -> list[tuple[str, str]]:
        """Options of sbatch and salloc, as pairs of name and value; "" for those without one."""
        is_exclusive = self.cpus_per_node is None
        values: dict[str, object] = {
            "partition": self.partition,
            "time": self.time_limit,
            "cpus-per-task": self.cpus_per_node,
            "exclusive": "" if is_exclusive else None,
            "mem": self.memory_per_node or ("0" if is_exclusive else None),
            "gpus-per-node": self.gpus_per_node or None,
        }
        pairs = [(name, str(value)) for name, value in values.items() if value is not None]
        options = [option.partition("=") for option in self.option]
        return pairs + [(name, value) for name, _, value in options]


def _seconds(time_limit: str | None) -> int | None:
    """Parse sbatch's durations: M, M:S, H:M:S, D-H, D-H:M, D-H:M:S."""
    match = _TIME.fullmatch(time_limit or "")
    if match is None:
        return None
    days, *rest = (None if part is None else int(part) for part in match.groups())
    parts = [part for part in rest if part is not None]
    if days is None and len(parts) < 3:  # minutes, and seconds
        parts = [0, *parts]
    hours, minutes, seconds = (*parts, 0, 0)[:3]
    return (((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds


def check_time(job: Job, start_timeout_s: float) -> None:
    """Raise ConfigError for a time limit that could pass before the command runs."""
    limit_s = _seconds(job.time_limit)
    needed_s = job.stop_before_s + start_timeout_s
    if limit_s is not None and limit_s <= needed_s:
        raise ConfigError(
            f"slurm: time_limit={job.time_limit!r}, which is {limit_s} s, must be above "
            f"stop_before_s={job.stop_before_s} and start_timeout_s={start_timeout_s:g} together "
            f"(nearest: {math.floor(needed_s / 60) + 1} minutes), or nothing may run before it"
        )


def script(job: Job, spec: JobSpec, log: str) -> str:
    """Return the batch script; ``log`` is the file of all output, an sbatch pattern.

    Raises:
        ConfigError: the time limit leaves no time for the command.
    """
    check_time(job, spec.start_timeout_s if spec.ray else 0.0)
    return rendered(
        "slurm.sh.j2",
        job=job,
        log=log,
        folder=os.getcwd(),
        python=sys.executable,
        spec=spec.write(),
    )

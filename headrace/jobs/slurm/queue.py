"""SLURM's own words: partitions, jobs and their states, read from its programs."""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass

from headrace.errors import ConfigError, LaunchFailed, nearest
from headrace.jobs.programs import called, require_programs
from headrace.jobs.slurm.job import Job

_GONE = {
    "COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL",
    "DEADLINE", "OUT_OF_MEMORY", "REVOKED",
}  # fmt: skip


def fields_of(line: str) -> dict[str, str]:
    """The NAME=VALUE pairs in a line of ``scontrol -o show``."""
    return dict(re.findall(r"(\S+?)=(\S*)", line))


@dataclass(frozen=True)
class State:
    """How a job, or one of an array, stands."""

    job: str  # its number; of an array, what tells it from the others too, as in "12_3"
    name: str  # PENDING, RUNNING, …
    reason: str
    restarts: int
    nodes: str
    exit_code: int  # 128 + the signal that ended it

    @property
    def ended(self) -> bool:
        return self.name in _GONE

    @property
    def running(self) -> bool:
        return self.name == "RUNNING"

    @property
    def waits(self) -> str:
        """In words, with the reason as soon as SLURM has one."""
        return "waits in the queue" + (f" ({self.reason})" if self.reason != "None" else "")


def states(job: str) -> list[State]:
    """Of a job, or of all jobs of an array.

    Raises:
        LaunchFailed: SLURM doesn't answer, or has forgotten it.
    """
    return [_state(line) for line in called("scontrol", "-o", "show", "job", job).splitlines()]


def _state(line: str) -> State:
    found = fields_of(line)
    code, _, number = found.get("ExitCode", "0:0").partition(":")
    task = found.get("ArrayTaskId")
    return State(
        found["JobId"] if task is None else f"{found['ArrayJobId']}_{task}",
        found["JobState"],
        found.get("Reason", "None"),
        int(found.get("Restarts", 0)),
        found.get("NodeList", ""),
        int(code) or (128 + int(number) if int(number) else 0),
    )


def submit(script: str) -> str:
    """Submit a batch script; the job's number.

    Raises:
        LaunchFailed: SLURM refused it.
    """
    return called("sbatch", "--parsable", stdin=script).strip().partition(";")[0]


def cancel(job: str) -> None:
    """End a job; safe if it has ended."""
    with contextlib.suppress(LaunchFailed):
        called("scancel", job)


@dataclass(frozen=True)
class _Partition:
    """What sinfo says of a partition."""

    nodes: int
    cpus: int  # of the node that has most
    gpus: int
    is_up: bool


def check_cluster(job: Job) -> None:
    """Refuse what SLURM would refuse, or let wait for ever.

    Raises:
        ConfigError: there is no SLURM here, or its partition has no such nodes.
        LaunchFailed: SLURM doesn't answer.
    """
    require_programs(
        *("sbatch", "srun", "scontrol", "sinfo", "scancel"),
        remedy="run this on a machine of the cluster, such as its login node, or train here with "
        "`headrace train`",
    )
    known, default = _partitions()
    name = job.partition or default
    if name not in known:
        hint = nearest(name, known) or f" There are {', '.join(known)}."
        raise ConfigError(f"slurm: partition={name!r} doesn't exist.{hint}")
    there, of = known[name], f"partition {name} "
    if not there.is_up:
        raise ConfigError(f"slurm: {of}takes no jobs now; choose another with --partition")
    if job.nodes > there.nodes:
        raise ConfigError(f"slurm: nodes={job.nodes}, but {of}has {there.nodes}")
    if job.gpus_per_node > there.gpus:
        others = [other for other in known if known[other].gpus >= job.gpus_per_node]
        hint = f" (partition {others[0]} has them)" if others else ""
        raise ConfigError(
            f"slurm: gpus_per_node={job.gpus_per_node}, but nodes of {of}have at most "
            f"{there.gpus}{hint}"
        )
    if (job.cpus_per_node or 0) > there.cpus:
        raise ConfigError(
            f"slurm: cpus_per_node={job.cpus_per_node}, but nodes of {of}have at most {there.cpus}"
        )


def _partitions() -> tuple[dict[str, _Partition], str]:
    """By name; and the one that jobs go to that name none."""
    found: dict[str, _Partition] = {}
    default = ""
    for line in called("sinfo", "-h", "-o", "%P|%D|%c|%G|%a").splitlines():
        starred, nodes, cpus, gres, up = line.split("|")
        name = starred.rstrip("*")
        default = name if starred.endswith("*") else default
        before = found.get(name, _Partition(0, 0, 0, False))
        counts = re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres)
        found[name] = _Partition(
            before.nodes + int(nodes),
            max(before.cpus, int(cpus.rstrip("+"))),
            max(before.gpus, sum(map(int, counts))),
            up == "up",
        )
    return found, default

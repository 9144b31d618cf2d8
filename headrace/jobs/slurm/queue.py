"""Queries of SLURM: partitions, jobs and their states, parsed from its programs."""

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
    """Parse the NAME=VALUE pairs in a line of ``scontrol -o show``."""
    return dict(re.findall(r"(\S+?)=(\S*)", line))


def hostnames(nodelist: str) -> list[str]:
    """Return the names of nodes in SLURM's notation, as in "node[1-2]"."""
    return called("scontrol", "show", "hostnames", nodelist).split()


def address_of(host: str) -> str:
    """Return the address by which SLURM reaches a node."""
    return fields_of(called("scontrol", "-o", "show", "node", host)).get("NodeAddr", host)


@dataclass(frozen=True)
class State:
    """State of a job, or of one of an array."""

    job: str  # its number; in an array with its index, as in "12_3"
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
        """Describe a waiting job, with SLURM's reason if available."""
        return "waits in the queue" + (f" ({self.reason})" if self.reason != "None" else "")


def states(job: str) -> list[State]:
    """Return the states of a job, or of all jobs of an array.

    Raises:
        LaunchFailed: SLURM doesn't answer, or has forgotten the job.
    """
    return [_state(line) for line in called("scontrol", "-o", "show", "job", job).splitlines()]


def _state(line: str) -> State:
    fields = fields_of(line)
    code, _, number = fields.get("ExitCode", "0:0").partition(":")
    task = fields.get("ArrayTaskId")
    return State(
        fields["JobId"] if task is None else f"{fields['ArrayJobId']}_{task}",
        fields["JobState"],
        fields.get("Reason", "None"),
        int(fields.get("Restarts", 0)),
        fields.get("NodeList", ""),
        int(code) or (128 + int(number) if int(number) else 0),
    )


def submit(script: str) -> str:
    """Submit a batch script and return the job's number.

    Raises:
        LaunchFailed: SLURM rejected it.
    """
    return called("sbatch", "--parsable", stdin=script).strip().partition(";")[0]


def cancel(job: str) -> None:
    """Cancel a job; safe if it has ended."""
    with contextlib.suppress(LaunchFailed):
        called("scancel", job)


@dataclass(frozen=True)
class _Partition:
    """Properties of a partition from sinfo."""

    nodes: int
    cpus: int  # maximum over its nodes
    gpus: int
    is_up: bool


def check_cluster(job: Job) -> None:
    """Reject jobs that SLURM would reject or never start.

    Raises:
        ConfigError: SLURM isn't available, or the partition lacks such nodes.
        LaunchFailed: SLURM doesn't answer.
    """
    require_programs(
        *("sbatch", "srun", "scontrol", "sinfo", "scancel"),
        remedy="run this on a machine of the cluster, such as its login node, or train here with "
        "`headrace train`",
    )
    names, default = _partitions()
    name = job.partition or default
    if name not in names:
        hint = nearest(name, names) or f" Available: {', '.join(names)}."
        raise ConfigError(f"slurm: partition={name!r} doesn't exist.{hint}")
    there, of = names[name], f"partition {name} "
    if not there.is_up:
        raise ConfigError(f"slurm: {of}accepts no jobs now; choose another with --partition")
    if job.nodes > there.nodes:
        raise ConfigError(f"slurm: nodes={job.nodes}, but {of}has {there.nodes}")
    if job.gpus_per_node > there.gpus:
        others = [other for other in names if names[other].gpus >= job.gpus_per_node]
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
    """Return the partitions by name, and the default partition."""
    partitions: dict[str, _Partition] = {}
    default = ""
    for line in called("sinfo", "-h", "-o", "%P|%D|%c|%G|%a").splitlines():
        starred, nodes, cpus, gres, up = line.split("|")
        name = starred.rstrip("*")
        default = name if starred.endswith("*") else default
        before = partitions.get(name, _Partition(0, 0, 0, False))
        counts = re.findall(r"gpu(?::[^:,(]+)?:(\d+)", gres)
        partitions[name] = _Partition(
            before.nodes + int(nodes),
            max(before.cpus, int(cpus.rstrip("+"))),
            max(before.gpus, sum(map(int, counts))),
            up == "up",
        )
    return partitions, default

"""Runs workers with Ray on the nodes of a SLURM job for the lifetime of the environment."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Annotated, Any

from headrace.cluster_env.messages import Backend, WorkerHandle, WorkerSetup
from headrace.errors import ConfigError, LaunchFailed, WorkerFailed
from headrace.jobs.slurm.allocation import Allocation, gpus_per_node
from headrace.jobs.slurm.job import LINE, NAME, OPTION, TIME, Job, check_time
from headrace.jobs.slurm.queue import check_cluster
from headrace.jobs.slurm.request import RequestedJob, requested
from headrace.ray.cluster_env import RayConfig
from headrace.ray.connection import check_installed
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings


@settings()
@dataclass(frozen=True)
class SlurmConfig:
    """Backend settings: a SLURM job, or the allocation that this program runs in, a worker per
    node.

    It starts Ray on the nodes, and stops Ray and the job with the environment or this program.
    """

    nodes: Annotated[int, ranges.NODES] = 2
    """Number of nodes, each with a worker of ``envs_per_node`` environments."""
    partition: Annotated[str | None, LINE] = None
    """Partition of the job; None: the cluster's default."""
    time_limit: Annotated[str | None, TIME] = None
    """Time limit of the job: minutes, "hours:minutes:seconds" or "days-hours"; None: the
    partition's."""
    gpus_per_node: Annotated[int, ranges.COUNT_OR_0] = 0
    """Number of GPUs per node, all assigned to its worker."""
    cpus_per_node: Annotated[int | None, ranges.COUNT] = None
    """Number of processors per node; None: request exclusive nodes."""
    job_name: Annotated[str, NAME] = "headrace"
    """Job name in squeue."""
    option: tuple[Annotated[str, OPTION], ...] = ()
    """Further options of salloc, as in ("account=physics",)."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray runtime environment of the workers (packages, environment variables, working
    directory)."""
    timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Timeout in seconds, after which an unresponsive worker is killed and replaced."""
    queue_timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = math.inf
    """Timeout in the queue in seconds, after which the job is cancelled."""
    start_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """Startup timeout in seconds, for Ray and then for each worker, once the job runs."""
    max_restarts: Annotated[int, ranges.COUNT_OR_0] = 10
    """Maximum number of worker replacements, over all workers."""

    def __post_init__(self) -> None:
        check_fields(self, "SlurmConfig: ")

    @property
    def job(self) -> Job:
        """Resources requested from SLURM."""
        names = "nodes partition time_limit gpus_per_node cpus_per_node job_name option"
        requested = {name: getattr(self, name) for name in names.split()}
        return Job(
            **requested, start_timeout_s=self.start_timeout_s, stop_before_s=1, requeue=False
        )

    def open(self) -> Backend:
        """Start the Ray cluster and connect to it.

        Raises:
            ConfigError: SLURM or Ray isn't available, lacks a requested resource, or this program
                already used such an environment.
            WorkerFailed: the job waits for too long, or its nodes don't start in time.
        """
        check_installed("SlurmConfig")
        if SlurmBackend.entered:  # Ray keeps the first cluster's token
            raise ConfigError(
                "SlurmConfig: only one ClusterEnv with SlurmConfig is possible per program, and "
                "this program already had one: start another program for the next"
            )
        if "ray" in sys.modules and os.environ.get("RAY_AUTH_MODE") != "token":
            raise ConfigError(
                "SlurmConfig: this program already imported ray, without RAY_AUTH_MODE=token, so "
                "it can't connect to the job's cluster; import it after the ClusterEnv is made"
            )
        return SlurmBackend(self)


class SlurmBackend:
    """Ray cluster on a SLURM job, used by one environment only."""

    entered = False  # this program has connected to such a cluster

    def __init__(self, config: SlurmConfig) -> None:
        self._stack = contextlib.ExitStack()
        self._before = {k: v for k, v in os.environ.items() if k.startswith("RAY_")}
        try:
            self._job = self._stack.enter_context(_nodes(config))
            ray = self._job.ray
            os.environ |= ray.environment
            SlurmBackend.entered = True
            self._ray = RayConfig(
                address=ray.address,
                nodes=config.nodes,
                gpus_per_node=config.gpus_per_node,
                runtime_env=config.runtime_env,
                start_timeout_s=config.start_timeout_s,
            ).open()
            self._stack.callback(self._ray.close, [])
        except BaseException as error:
            self.close([])
            if isinstance(error, LaunchFailed):
                raise WorkerFailed(f"SLURM: {error}") from error
            raise

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        return self._ray.start(setup)

    def wait(self, nodes: list[Any], timeout_s: float) -> list[WorkerHandle]:
        try:
            return self._ray.wait(nodes, timeout_s)
        except WorkerFailed as error:
            job = self._job
            if isinstance(job, RequestedJob) and (reason := job.end_reason()):
                raise WorkerFailed(
                    f"SLURM: job {job.number} has ended: {reason} ({error})"
                ) from error
            raise

    def close(self, nodes: list[Any]) -> None:
        for node in nodes:
            node.kill()
        try:
            self._stack.close()
        finally:
            for name in [name for name in os.environ if name.startswith("RAY_")]:
                del os.environ[name]
            os.environ |= self._before


def _nodes(config: SlurmConfig) -> AbstractContextManager[Allocation | RequestedJob]:
    """Return the allocation that this program runs in, or a new one."""
    if "SLURM_JOB_NODELIST" not in os.environ:
        check_time(config.job, config.start_timeout_s)
        check_cluster(config.job)
        return requested(config.job, config.queue_timeout_s, _say)
    nodes = int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
    for name, there in (("nodes", nodes), ("gpus_per_node", gpus_per_node())):
        if (value := getattr(config, name)) > there:
            raise ConfigError(
                f"SlurmConfig: {name}={value}, but this program runs in job "
                f"{os.environ.get('SLURM_JOB_ID')}, which has {there} (nearest: {there})"
            )
    return Allocation(config.gpus_per_node, config.start_timeout_s)


def _say(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)

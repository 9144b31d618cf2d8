"""Runs workers with Ray on the nodes of a SLURM job for the lifetime of the environment."""

from __future__ import annotations

import contextlib
import math
import os
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from headrace.ray.cluster_env import RayConfig
from headrace.cluster_env.messages import Backend, WorkerHandle, WorkerSetup
from headrace.errors import ConfigError, LaunchFailed, WorkerFailed
from headrace.jobs.job_spec import JobSpec
from headrace.ray.node import Ray
from headrace.jobs.slurm import rendezvous
from headrace.jobs.slurm.allocation import Allocation, gpus_per_node
from headrace.jobs.slurm.following import cancelled
from headrace.jobs.slurm.job import LINE, NAME, OPTION, TIME, Job, script
from headrace.jobs.slurm.node import NodeSpec
from headrace.jobs.slurm.queue import check_cluster, states, submit
from headrace.jobs.versions import versions
from headrace.ray.connection import check_installed
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

_LOOK_S = 1.0
_END_S = 15.0  # for this machine's Ray node


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
    """Further options of sbatch, as in ("account=physics",)."""
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
                "this "
                "program already had one: start another program for the next"
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
        self._config, self._job = config, ""
        self._stack = contextlib.ExitStack()
        self._before = {k: v for k, v in os.environ.items() if k.startswith("RAY_")}
        try:
            ray = (
                self._use_allocation() if "SLURM_JOB_NODELIST" in os.environ else self._submit_job()
            )
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

    def _use_allocation(self) -> Ray:
        """Start Ray on the nodes of the current allocation."""
        config, nodes = self._config, int(os.environ.get("SLURM_JOB_NUM_NODES", 1))
        for name, there in (("nodes", nodes), ("gpus_per_node", gpus_per_node())):
            if (requested := getattr(config, name)) > there:
                raise ConfigError(
                    f"SlurmConfig: {name}={requested}, but this program runs in job "
                    f"{os.environ.get('SLURM_JOB_ID')}, which has {there} (nearest: {there})"
                )
        allocation = Allocation(config.gpus_per_node, config.start_timeout_s, None)
        return self._stack.enter_context(allocation).ray

    def _submit_job(self) -> Ray:
        """Submit a job, and start Ray on its nodes."""
        config = self._config
        check_cluster(config.job)
        folder = Path(f".headrace-{secrets.token_hex(4)}").absolute()
        folder.mkdir(mode=0o700)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        self._log = folder / "job.log"
        meet = JobSpec(
            [], [], [], start_timeout_s=config.start_timeout_s, requeue=False, meet=str(folder)
        )
        self._job = submit(script(config.job, meet, str(self._log)))
        self._stack.callback(cancelled, self._job, _say)
        self._stack.callback(rendezvous.Heartbeat(folder).stop)
        ray = self._await_cluster(folder)
        self._stack.enter_context(_own_node(ray, self._job, config.start_timeout_s))
        return ray

    def _await_cluster(self, folder: Path) -> Ray:
        deadline = time.monotonic() + self._config.queue_timeout_s
        printed = ""
        while True:
            if (ray := rendezvous.found(folder)) is not None:
                return ray
            [state] = states(self._job)
            if state.ended:
                raise LaunchFailed(self._failure_reason(state.name))
            status = state.waits if not state.nodes else "starts"
            if status != printed:
                _say(f"job {self._job} {status}")
                printed = status
            if not state.nodes and time.monotonic() > deadline:
                limit = f"{self._config.queue_timeout_s:g} s (queue_timeout_s)"
                raise LaunchFailed(f"job {self._job} waited in the queue for {limit}")
            time.sleep(_LOOK_S)

    def _failure_reason(self, state: str) -> str:
        with contextlib.suppress(OSError):
            lines = self._log.read_text(errors="replace").splitlines()
            messages = [line for line in lines if line.startswith("headrace: ")] or lines[-1:]
            if messages:
                return messages[-1].removeprefix("headrace: ")
        return (
            f"job {self._job} has ended as {state} and printed nothing here: can its nodes write "
            f"to {self._log.parent.parent}? Start this in a folder that all nodes share"
        )

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        return self._ray.start(setup)

    def wait(self, nodes: list[Any], timeout_s: float) -> list[WorkerHandle]:
        try:
            return self._ray.wait(nodes, timeout_s)
        except WorkerFailed as error:
            if self._job and (ended := [one for one in states(self._job) if one.ended]):
                why = f"job {self._job} has ended: {ended[0].name}"
                raise WorkerFailed(f"SLURM: {why} ({error})") from error
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


@contextlib.contextmanager
def _own_node(ray: Ray, job: str, timeout_s: float) -> Iterator[None]:
    """Run a Ray node without processors on this machine, as a driver requires, inside the block."""
    orders = NodeSpec(ray, "", 0, versions(), "", timeout_s)
    own = {"SLURM_JOB_ID": job, "SLURM_NODEID": "driver", "SLURM_CPUS_ON_NODE": "0"}
    with subprocess.Popen(
        [sys.executable, "-m", "headrace.jobs.slurm.node"],
        env=os.environ | own | {"SLURMD_NODENAME": socket.gethostname()},
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for this process
    ) as node:
        assert node.stdin is not None
        node.stdin.write(orders.write() + "\n")
        node.stdin.flush()
        try:
            yield
        finally:
            node.stdin.close()
            with contextlib.suppress(subprocess.TimeoutExpired):
                node.wait(_END_S)
            node.kill()


def _say(text: str) -> None:
    print(f"headrace: {text}", file=sys.stderr, flush=True)

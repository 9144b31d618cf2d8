"""Runs workers as Ray actors, on this machine or in a Ray cluster."""

from __future__ import annotations

import contextlib
import time
import warnings
from dataclasses import dataclass, field
from typing import Annotated, Any

import cloudpickle

from headrace.cluster_env.messages import (
    Answer,
    Backend,
    Request,
    WorkerFault,
    WorkerHandle,
    WorkerSetup,
)
from headrace.errors import WorkerFailed
from headrace.processes.pickling import missing_module_message
from headrace.ray.connection import RayCluster
from headrace.ray.process import (
    CallFailed,
    Home,
    headrace_version,
    process_class,
    set_up_process,
)
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

_SLICE_S = 5.0  # interval between checks of the cluster while waiting


@settings()
@dataclass(frozen=True)
class RayConfig:
    """Backend settings: actors of a Ray cluster whose machines have headrace installed."""

    address: str | None = None
    """Address of the cluster, as in ``ray.init`` (``"auto"``, ``"10.0.0.1:6379"``); None: start one
    on this machine, which listens on the loopback interface only and requires a token."""
    nodes: Annotated[int, ranges.NODES] = 2
    """Number of workers, each with ``envs_per_node`` environments."""
    cpus_per_node: Annotated[float, ranges.UNITS] = 1.0
    """Cores that Ray reserves per worker, on an existing cluster."""
    gpus_per_node: Annotated[float, ranges.UNITS] = 0.0
    """GPUs that Ray reserves per worker."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray runtime environment of the workers (packages, environment variables, working
    directory)."""
    timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Timeout in seconds, after which an unresponsive worker is killed and replaced."""
    start_timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Startup timeout of a worker in seconds, including the wait for free resources."""
    max_restarts: Annotated[int, ranges.COUNT_OR_0] = 10
    """Maximum number of worker replacements, over all workers."""

    def __post_init__(self) -> None:
        check_fields(self, "RayConfig: ")

    def open(self) -> Backend:
        """Connect to the cluster, or start one.

        Raises:
            ConfigError: Ray isn't installed.
            WorkerFailed: see :class:`RayCluster`; or a cluster started here lacks the GPUs.
        """
        return RayBackend(self)


class RayBackend:
    """Ray cluster with workers; an existing cluster keeps running after the environment is
    closed.
    """

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        cores = config.nodes * config.cpus_per_node
        self._cluster = RayCluster(config.address, "RayConfig", cores)
        # A cluster started here is shared by this whole program, and reserves no cores.
        self._cores = 0.0 if self._cluster.is_own else config.cpus_per_node
        try:
            if lack := self._lack():
                if self._cluster.is_own:
                    raise WorkerFailed(lack)
                wait = f"waiting start_timeout_s={config.start_timeout_s:g} s for more nodes"
                warnings.warn(f"{lack} ({wait})", RuntimeWarning, stacklevel=2)
        except BaseException:
            self._cluster.close()
            raise

    def _lack(self) -> str:
        """Return an error text if the cluster can't run all workers at once, even when idle."""
        config = self._config
        room = self._cluster.room(self._cores, config.gpus_per_node)
        if room >= config.nodes:
            return ""
        there = self._cluster.api.cluster_resources()
        return (
            f"RayConfig: of nodes={config.nodes} workers, with cpus_per_node="
            f"{config.cpus_per_node:g} and gpus_per_node={config.gpus_per_node:g}, the Ray cluster "
            f"has room for {room:g}: its nodes have {there.get('CPU', 0):g} cores and "
            f"{there.get('GPU', 0):g} GPUs, all together; add nodes, or lower nodes, "
            "cpus_per_node or gpus_per_node"
        )

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        return RayWorker(setup, self._config, self._cluster, self._cores)  # may wait for resources

    def wait(self, nodes: list[Any], timeout_s: float) -> list[WorkerHandle]:
        by_ref = {node.ref: node for node in nodes}
        deadline = time.monotonic() + timeout_s
        while True:
            self._cluster.check_here()
            left_s = max(0.0, deadline - time.monotonic())
            slice_s = min(left_s, _SLICE_S)
            ready = self._cluster.arrived(list(by_ref), slice_s)
            if not ready:
                self._check_room(nodes)
            if ready or left_s <= slice_s:
                return [by_ref[ref] for ref in ready]
            self._cluster.check()

    def _check_room(self, nodes: list[Any]) -> None:
        """Raise WorkerFailed if a worker has waited too long for resources."""
        limit_s, cluster = self._config.start_timeout_s, self._cluster
        for node in nodes:
            if time.monotonic() - node.began_s > limit_s and not node.is_placed():
                gpus = cluster.api.available_resources().get("GPU", 0)
                raise WorkerFailed(
                    self._lack()
                    or f"{node.name} didn't start within {limit_s:g} s (start_timeout_s): of the "
                    f"{cluster.cores:g} cores of the Ray cluster {cluster.free_cores:g} are free, "
                    f"and {gpus:g} GPUs; add nodes, or lower nodes, cpus_per_node or gpus_per_node"
                )

    def close(self, nodes: list[Any]) -> None:
        try:
            for node in nodes:
                node.kill()
        finally:
            self._cluster.close()


class RayWorker:
    """One worker as a Ray actor."""

    def __init__(
        self, setup: WorkerSetup, config: RayConfig, cluster: RayCluster, cores: float
    ) -> None:
        self._ray, self._cluster, self._setup = cluster.api, cluster, setup
        self.began_s = time.monotonic()
        self.ref: Any = None
        kind = cluster.kind(
            process_class("HeadraceWorker", "headrace.ray.cluster_env:RemoteWorker"),
            num_cpus=cores,
            num_gpus=config.gpus_per_node,
            runtime_env=config.runtime_env or None,
            scheduling_strategy="SPREAD",
        )
        self._actor = kind.remote()
        self._home = self._actor.home.remote()
        self._begun = self._actor.begin.remote(headrace_version(), cloudpickle.dumps(setup))

    def is_placed(self) -> bool:
        """Return whether Ray has placed the actor on a node."""
        return bool(self._ray.wait([self._home], timeout=0)[0])

    @property
    def name(self) -> str:
        where = ""
        with contextlib.suppress(Exception):  # Ray's: the node doesn't exist
            where = f", {Home(*self._ray.get(self._home, timeout=0))}"
        return f"worker {self._setup.index} (Ray actor, start {self._setup.generation + 1}{where})"

    def send(self, request: Request) -> None:
        self._cluster.check_here()
        self.ref = self._actor.call.remote("handle", cloudpickle.dumps(request))
        if self._setup.runs_ahead:
            self._actor.call.remote("prepare")  # in order, as the answer is sent

    def receive(self) -> Answer | WorkerFault:
        self._cluster.check_here()
        try:
            *_, answer = self._cluster.result([self._home, self._begun, self.ref], 60.0)
        except CallFailed as failure:
            return WorkerFault(f"died ({failure})")
        return answer

    def kill(self) -> None:
        self._ray.kill(self._actor)


class RemoteWorker:
    """Worker of a Ray actor; answers like a worker process (``backends/local.py``).

    Args:
        version: headrace's version at the head.
        setup: a pickled :class:`WorkerSetup`.
    """

    def __init__(self, version: str, setup: bytes) -> None:
        self._setup = setup
        self._worker: Any = None
        self._failed: WorkerFault | None = None  # sent with the next answer
        if words := set_up_process(version, "where the ClusterEnv is"):
            self._failed = WorkerFault(words)

    def handle(self, packed: bytes) -> Any:
        """Answer a request with an Answer or a WorkerFault."""
        from headrace.cluster_env.worker import Worker

        if self._failed is not None:
            return self._failed
        try:
            if self._worker is None:
                self._worker = Worker(cloudpickle.loads(self._setup))
            return self._worker.handle(cloudpickle.loads(packed))
        except Exception as error:
            return _fault_of(error)

    def prepare(self) -> None:
        """See ``Worker.prepare``."""
        try:
            if self._worker is not None:
                self._worker.prepare()
        except Exception as error:
            self._failed = _fault_of(error)


def _fault_of(error: Exception) -> WorkerFault:
    from headrace.cluster_env.worker import fault_of

    fault, lacks = fault_of(error), error.__cause__ or error  # the cause of an agent's error
    if isinstance(lacks, ModuleNotFoundError):
        return fault._replace(reason=missing_module_message(lacks))
    return fault

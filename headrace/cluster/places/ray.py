"""Workers as Ray actors: on this machine, or wherever a Ray cluster has room."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import cloudpickle

from headrace.cluster.messages import Answer, Fault, Node, Place, Request, WorkerSetup
from headrace.process.ray import RayCluster
from headrace.valid import ranges
from headrace.valid.fields import check_fields, settings

_SLICE_S = 5.0  # of a wait, after which the cluster is looked at


@settings()
@dataclass(frozen=True)
class RayConfig:
    """Actors of a Ray cluster; headrace has to be installed on its machines."""

    address: str | None = None
    """Of the cluster, as ``ray.init`` takes it (``"auto"``, ``"10.0.0.1:6379"``); None: start one
    on this machine, which listens on the loopback interface only and wants a token."""
    nodes: Annotated[int, ranges.NODES] = 2
    """Workers, each with ``envs_per_node`` environments."""
    cpus_per_node: Annotated[float, ranges.UNITS] = 1.0
    """Cores that Ray keeps for each worker."""
    gpus_per_node: Annotated[float, ranges.UNITS] = 0.0
    """GPUs that Ray keeps for each worker."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Of the workers, as Ray takes it (packages, environment variables, working directory)."""
    timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """A worker that doesn't answer for so long is killed and replaced."""
    start_timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Time for a worker to come up, its waiting for a machine with room included."""
    max_restarts: Annotated[int, ranges.COUNT_OR_0] = 10
    """Deaths that are made good, all workers together."""

    def __post_init__(self) -> None:
        check_fields(self, "RayConfig: ")

    def open(self) -> Place:
        """Connect to the cluster, or start one.

        Raises:
            ConfigError: Ray isn't installed.
            WorkerFailed: there is no cluster at this address.
        """
        return RayPlace(self)


class RayPlace:
    """A Ray cluster; left as it was found, except for one that was started here."""

    def __init__(self, config: RayConfig) -> None:
        self._config = config
        units = config.nodes * config.cpus_per_node, config.nodes * config.gpus_per_node
        self._cluster = RayCluster(config.address, "RayConfig", *units)
        self._ray = self._cluster.api

    def start(self, setup: WorkerSetup) -> Node:
        return RayNode(setup, self._config, self._ray)  # which may have to wait for room

    def wait(self, nodes: list[Any], timeout_s: float) -> list[Node]:
        by_ref = {node.ref: node for node in nodes}
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            slice_s = min(left_s, _SLICE_S)
            ready, _ = self._ray.wait(list(by_ref), num_returns=1, timeout=slice_s)
            if ready or left_s <= slice_s:
                return [by_ref[ref] for ref in ready]
            self._cluster.check()

    def close(self, nodes: list[Any]) -> None:
        for node in nodes:
            node.kill()
        self._cluster.close()


class RayNode:
    """One actor."""

    def __init__(self, setup: WorkerSetup, config: RayConfig, ray: Any) -> None:
        self._ray = ray
        self.name = f"worker {setup.index} (Ray actor, start {setup.generation + 1})"
        self.ref: Any = None
        actor = ray.remote(
            num_cpus=config.cpus_per_node,
            num_gpus=config.gpus_per_node,
            runtime_env=config.runtime_env or None,
            max_restarts=0,
            max_task_retries=0,
            scheduling_strategy="SPREAD",
        )(_Actor)
        self._actor = actor.remote(cloudpickle.dumps(setup))
        self._runs_ahead = setup.runs_ahead

    def send(self, request: Request) -> None:
        self.ref = self._actor.handle.remote(cloudpickle.dumps(request))
        if self._runs_ahead:
            self._actor.prepare.remote()  # in turn, when the answer is on its way

    def receive(self) -> Answer | Fault:
        kinds = self._ray.exceptions
        try:
            return self._ray.get(self.ref, timeout=60.0)
        except (kinds.RayError, kinds.GetTimeoutError) as error:
            cause = str(error).strip().splitlines()[0]
            return Fault(f"died ({type(error).__name__}: {cause})")

    def kill(self) -> None:
        self._ray.kill(self._actor)


class _Actor:
    """What Ray runs; answers as a worker process does (``headrace/cluster/places/local.py``)."""

    def __init__(self, setup: bytes) -> None:
        import torch

        from headrace.process import let_children_hear

        torch.set_num_threads(1)
        let_children_hear()
        self._setup = setup
        self._worker: Any = None
        self._failed: Any = None  # what prepare() says with the next answer

    def handle(self, packed: bytes) -> Any:
        """The Answer to a Request, or a Fault."""
        from headrace.cluster.worker import Worker, fault_of

        if self._failed is not None:
            return self._failed
        try:
            if self._worker is None:
                self._worker = Worker(cloudpickle.loads(self._setup))
            return self._worker.handle(cloudpickle.loads(packed))
        except Exception as error:
            return fault_of(error)

    def prepare(self) -> None:
        """See ``Worker.prepare``."""
        from headrace.cluster.worker import fault_of

        try:
            if self._worker is not None:
                self._worker.prepare()
        except Exception as error:
            self._failed = fault_of(error)

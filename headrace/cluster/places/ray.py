"""Workers as Ray actors: on this machine, or wherever a Ray cluster has room."""

from __future__ import annotations

import importlib.util
import logging
import math
import os
import secrets
import sys
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

import cloudpickle

from headrace.cluster.messages import Answer, Fault, Node, Place, Request, WorkerSetup
from headrace.errors import ConfigError, WorkerFailed
from headrace.valid import ranges
from headrace.valid.fields import check_fields, settings

# A node of a cluster that is started here counts as dead after about 10 s of silence, not 80.
_HEALTH = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 5_000,
    "health_check_failure_threshold": 5,
}


_LOOK_S = 5.0  # between two looks at which nodes of a silent cluster live


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
        if importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "RayConfig needs Ray, which isn't installed (pip install 'headrace[ray]')"
            )
        return RayPlace(self)


class RayPlace:
    """A Ray cluster; left as it was found, except for one that was started here."""

    def __init__(self, config: RayConfig) -> None:
        self._config, self._started = config, False
        if config.address is None and not _is_connected():
            _close_doors()
        import ray

        self._ray: Any = ray
        if _is_connected():
            if config.address not in (None, "auto"):
                raise ConfigError(
                    f"RayConfig: address={config.address!r}, but this program is connected to a "
                    "Ray cluster already; call ray.shutdown() before, or leave address out"
                )
            return
        settings: dict[str, Any] = {"address": config.address, "log_to_driver": False}
        if config.address is None:
            settings |= {
                "num_cpus": math.ceil(max(1.0, config.nodes * config.cpus_per_node)),
                "num_gpus": math.ceil(config.nodes * config.gpus_per_node) or None,
                "include_dashboard": False,
                "_system_config": _HEALTH,
            }
        try:
            ray.init(logging_level=logging.WARNING, **settings)
        except Exception as error:  # Ray raises several kinds
            where = "on this machine" if config.address is None else f"at {config.address!r}"
            raise WorkerFailed(f"Ray: there is no cluster {where} ({error})") from error
        self._started = True

    def start(self, setup: WorkerSetup) -> Node:
        return RayNode(setup, self._config, self._ray)  # which may have to wait for room

    def wait(self, nodes: list[Any], timeout_s: float) -> list[Node]:
        by_ref = {node.ref: node for node in nodes}
        deadline = time.monotonic() + timeout_s
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            slice_s = min(left_s, _LOOK_S)
            ready, _ = self._ray.wait(list(by_ref), num_returns=1, timeout=slice_s)
            if ready or left_s <= slice_s:
                return [by_ref[ref] for ref in ready]
            if not any(node["Alive"] for node in self._ray.nodes()):
                raise WorkerFailed(
                    "Ray: every node of the cluster is dead (its raylets have ended)"
                )

    def close(self, nodes: list[Any]) -> None:
        for node in nodes:
            node.kill()
        if self._started:
            self._ray.shutdown()
            self._started = False


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _close_doors() -> None:
    """Let a cluster that is started here listen on the loopback interface, to who has its token.

    Ray reads this when it is imported.

    Raises:
        ConfigError: it has been imported without a token.
    """
    if "ray" not in sys.modules:  # no machines but this one: loopback only
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if os.environ.get("RAY_AUTH_MODE") == "token":
        return
    if "ray" in sys.modules:
        raise ConfigError(
            "RayConfig: this program imported ray before, without RAY_AUTH_MODE=token, so a "
            "cluster that is started now would let anybody in; import it after the ClusterEnv is "
            "made, set RAY_AUTH_MODE, or start the cluster yourself with ray.init()"
        )
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(32)}


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

    def send(self, request: Request) -> None:
        self.ref = self._actor.handle.remote(cloudpickle.dumps(request))

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

        torch.set_num_threads(1)
        self._setup = setup
        self._worker: Any = None

    def handle(self, packed: bytes) -> Any:
        """The Answer to a Request, or a Fault."""
        from headrace.cluster.worker import Worker, fault_of

        try:
            if self._worker is None:
                self._worker = Worker(cloudpickle.loads(self._setup))
            return self._worker.handle(cloudpickle.loads(packed))
        except Exception as error:
            return fault_of(error)

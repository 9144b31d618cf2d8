"""Runs workers in the pods of the KubeRay cluster that this program runs in."""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass, field
from typing import Annotated, Any

from headrace.cluster_env.messages import Backend
from headrace.errors import ConfigError, WorkerFailed
from headrace.ray.cluster_env import RayConfig
from headrace.ray.connection import RayCluster
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

_INSIDE = "KUBERAY_GEN_RAY_START_CMD"  # set by KubeRay in all of its containers
_LOOK_S = 0.5


@settings()
@dataclass(frozen=True)
class KubernetesConfig:
    """Backend settings: the pods of the Ray cluster that this program runs in, a worker each.

    ``headrace launch k8s --nodes N -- python …`` runs a program in such a cluster, which ends with
    it.
    """

    nodes: Annotated[int, ranges.NODES] = 2
    """Number of required pods, each with a worker of ``envs_per_node`` environments."""
    gpus_per_node: Annotated[int, ranges.COUNT_OR_0] = 0
    """Number of GPUs per pod, all assigned to its worker."""
    runtime_env: dict[str, Any] = field(default_factory=dict)
    """Ray runtime environment of the workers (packages, environment variables, working
    directory)."""
    timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Timeout in seconds, after which an unresponsive worker is killed and replaced."""
    start_timeout_s: Annotated[float, ranges.SECONDS] = 300.0
    """Startup timeout in seconds, for the pods and then for each worker."""
    max_restarts: Annotated[int, ranges.COUNT_OR_0] = 10
    """Maximum number of worker replacements, over all workers."""

    def __post_init__(self) -> None:
        check_fields(self, "KubernetesConfig: ")

    def open(self) -> Backend:
        """Connect to the cluster, and wait for its pods.

        Raises:
            ConfigError: this program isn't in a pod of a Ray cluster, or Ray isn't installed.
            WorkerFailed: the cluster doesn't answer, or its pods don't start in time.
        """
        if _INSIDE not in os.environ:
            raise ConfigError(
                "KubernetesConfig: this program isn't running in a pod of a KubeRay cluster: "
                f"run it in one, with `headrace launch k8s --nodes {self.nodes} -- python …`, or "
                "train here with LocalConfig"
            )
        with contextlib.closing(RayCluster("auto", "KubernetesConfig", 0)) as cluster:
            _await_pods(cluster, self)
            return RayConfig(
                address="auto",
                nodes=self.nodes,
                gpus_per_node=self.gpus_per_node,
                runtime_env=self.runtime_env,
                start_timeout_s=self.start_timeout_s,
            ).open()


def _await_pods(cluster: RayCluster, config: KubernetesConfig) -> None:
    """Raise WorkerFailed unless the required number of Ray nodes is up in time."""
    deadline = time.monotonic() + config.start_timeout_s
    while True:
        cluster.check()
        there = sum(node["Alive"] for node in cluster.api.nodes())
        if there >= config.nodes:
            return
        if time.monotonic() > deadline:
            raise WorkerFailed(
                f"KubernetesConfig: {there} of nodes={config.nodes} pods of the Ray cluster "
                f"{os.environ.get('RAY_CLUSTER_NAME', '')} are up after "
                f"{config.start_timeout_s:g} s: start the program with "
                f"`headrace launch k8s --nodes {config.nodes} -- …`, or see which pods wait with "
                "`kubectl get pods`"
            )
        time.sleep(_LOOK_S)

"""Manifest of the RayJob that starts a Ray cluster in Kubernetes through KubeRay."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated, Any

from headrace.errors import ConfigError
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.kubernetes.entry import RUNS, VARIABLE
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

LABEL = "headrace/job"  # label with the RayJob's name on all its pods: KubeRay labels some only
_USER = 1000  # user of the image
_NAME = re.compile(r"[a-z]([a-z0-9-]{0,38}[a-z0-9])?")
NAME = ranges.Constraint(
    "lower-case letters, digits and -, beginning with a letter, at most 40",
    lambda text: bool(_NAME.fullmatch(text)),
)
_UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}
MEMORY = ranges.Constraint(
    'a number and Mi, Gi or Ti, as in "8Gi"',
    lambda text: bool(re.fullmatch(r"[1-9]\d{0,8}(Mi|Gi|Ti)", text)),
)


@settings()
@dataclass(frozen=True)
class KubernetesJob:
    """Resources requested from Kubernetes for a RayJob."""

    nodes: Annotated[int, ranges.NODES] = 2
    """Number of pods, each with a Ray node; the learner is in the first one."""
    max_nodes: Annotated[int | None, ranges.NODES] = None
    """Upper limit of pods for Ray's autoscaler, which adds pods when actors find no room; None:
    off.
    """
    image: Annotated[str, ranges.NOT_EMPTY] = "headrace:latest"
    """Container image with headrace and Ray, as built by the Dockerfile."""
    cpus_per_node: Annotated[int, ranges.COUNT] = 4
    """Number of processors per pod."""
    memory_per_node: Annotated[str, MEMORY] = "8Gi"
    """Memory per pod."""
    gpus_per_node: Annotated[int, ranges.COUNT_OR_0] = 0
    """Number of NVIDIA GPUs per pod."""
    namespace: Annotated[str | None, ranges.NOT_EMPTY] = None
    """Namespace of all resources; None: kubectl's default."""
    volume_claim: Annotated[str, ranges.NOT_EMPTY] = "headrace-runs"
    """Existing PersistentVolumeClaim, to which the learner's pod writes runs."""
    job_name: Annotated[str, NAME] = "headrace"
    """Prefix of the RayJob's name."""
    retries: Annotated[int, ranges.COUNT_OR_0] = 3
    """Number of times that a lost cluster is recreated and the run resumed from its checkpoint."""

    def __post_init__(self) -> None:
        check_fields(self, "k8s: ")
        if self.max_nodes is not None and self.max_nodes < max(2, self.nodes):
            raise ConfigError(
                f"k8s: max_nodes={self.max_nodes} must be nodes={self.nodes} or more, and 2 or "
                f"more (nearest: {max(2, self.nodes)})"
            )


def manifest(job: KubernetesJob, orders: JobSpec, name: str, ray_version: str) -> dict[str, Any]:
    """Return the RayJob of this name."""
    metadata: dict[str, Any] = {"name": name, "labels": {"app.kubernetes.io/name": "headrace"}}
    if job.namespace is not None:
        metadata["namespace"] = job.namespace
    scales = job.max_nodes is not None
    label = {"metadata": {"labels": {LABEL: name}}}
    head = label | _pod(job, "ray-head", orders, scales)
    cluster: dict[str, Any] = {
        "rayVersion": ray_version,
        "authOptions": {"mode": "token"},
        "headGroupSpec": {"rayStartParams": {}, "template": head},
    }
    if scales:
        cluster |= {
            "enableInTreeAutoscaling": True,
            "autoscalerOptions": {"securityContext": _container_security()},
        }
    if job.nodes > 1 or scales:
        cluster["workerGroupSpecs"] = [
            {
                "groupName": "actors",
                "replicas": job.nodes - 1,
                "minReplicas": job.nodes - 1,
                "maxReplicas": (job.max_nodes or job.nodes) - 1,
                "rayStartParams": {},
                "template": label | _pod(job, "ray-worker", None, False),
            }
        ]
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayJob",
        "metadata": metadata,
        "spec": {
            "entrypoint": "python -m headrace.jobs.kubernetes.entry",
            "backoffLimit": job.retries,
            "shutdownAfterJobFinishes": True,
            "rayClusterSpec": cluster,
            "submitterPodTemplate": label | _submitter(job),
        },
    }


def _pod(job: KubernetesJob, name: str, orders: JobSpec | None, scales: bool) -> dict[str, Any]:
    """Return a Ray node's pod; the one with a job spec runs the command and has the volume of
    runs.
    """
    given: dict[str, Any] = {"cpu": str(job.cpus_per_node), "memory": job.memory_per_node}
    if job.gpus_per_node:
        given["nvidia.com/gpu"] = str(job.gpus_per_node)
    number, unit = int(job.memory_per_node[:-2]), job.memory_per_node[-2:]
    shared = f"{math.floor(0.3 * number * _UNITS[unit] / 2**20)}Mi"  # same share as Ray's default
    volumes: list[dict[str, Any]] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": shared}}
    ]
    mounts = [{"name": "shm", "mountPath": "/dev/shm"}]
    environment = [{"name": "RAY_USAGE_STATS_ENABLED", "value": "0"}]
    if orders is not None:
        claim = {"claimName": job.volume_claim}
        volumes.append({"name": "runs", "persistentVolumeClaim": claim})
        mounts.append({"name": "runs", "mountPath": RUNS})
        written = orders.write().replace("$(", "$$(")  # Kubernetes would treat it as a variable
        environment.append({"name": VARIABLE, "value": written})
    spec: dict[str, Any] = {
        "securityContext": _pod_security(),
        "containers": [
            {
                "name": name,
                "image": job.image,
                "env": environment,
                "resources": {"requests": given, "limits": dict(given)},
                "securityContext": _container_security(),
                "volumeMounts": mounts,
            }
        ],
        "volumes": volumes,
    }
    if not scales:  # for the autoscaler
        spec["automountServiceAccountToken"] = False
    return {"spec": spec}


def _submitter(job: KubernetesJob) -> dict[str, Any]:
    """Return the pod that submits the command and shows its output."""
    small = {"cpu": "500m", "memory": "512Mi"}
    container = {
        "name": "ray-job-submitter",
        "image": job.image,
        "resources": {"requests": small, "limits": {**small, "memory": "1Gi"}},
        "securityContext": _container_security(),
    }
    spec = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": _pod_security(),
        "containers": [container],
    }
    return {"spec": spec}


def _pod_security() -> dict[str, Any]:
    return {
        "runAsNonRoot": True,
        "runAsUser": _USER,
        "runAsGroup": _USER,
        "fsGroup": _USER,
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _container_security() -> dict[str, Any]:
    return {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

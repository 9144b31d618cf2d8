"""Manifest of the RayJob that starts a Ray cluster in Kubernetes through KubeRay."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Annotated

from headrace.errors import ConfigError
from headrace.jobs.job_spec import JobSpec
from headrace.jobs.kubernetes.entry import RUNS, VARIABLE
from headrace.jobs.rendering import rendered
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings

LABEL = "headrace/job"  # label with the RayJob's name on all its pods: KubeRay labels some only
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


def manifest(job: KubernetesJob, spec: JobSpec, name: str, ray_version: str) -> str:
    """Return the RayJob of this name as YAML."""
    number, unit = int(job.memory_per_node[:-2]), job.memory_per_node[-2:]
    shared_mib = math.floor(0.3 * number * _UNITS[unit] / 2**20)  # same share as Ray's default
    return rendered(
        "rayjob.yaml.j2",
        job=job,
        name=name,
        ray_version=ray_version,
        scales=job.max_nodes is not None,
        shared_memory=f"{shared_mib}Mi",
        runs=RUNS,
        variable=VARIABLE,
        spec=spec.write().replace("$(", "$$("),  # Kubernetes would treat it as a variable
    )

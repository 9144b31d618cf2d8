"""A RayJob as its user sees it: applied, followed, deleted; by kubectl, with its user's rights."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
import time
from collections.abc import Callable
from typing import Any

from headrace.errors import ConfigError, LaunchFailed
from headrace.provision.programs import called, require_programs

_LOOK_S = 2.0
_END_S = 15.0  # for the last of the output
_HOPELESS = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
    "CreateContainerError", "CrashLoopBackOff", "RunContainerError",
}  # fmt: skip
_BY_JOB = "ray.io/originated-from-cr-name"  # the label by which KubeRay's pods know their RayJob


class Kubernetes:
    """The cluster that kubectl reaches, in one namespace; None: kubectl's own."""

    def __init__(self, namespace: str | None) -> None:
        require_programs(
            "kubectl",
            remedy="install it and let it reach your cluster, or print the manifest with --dry-run",
        )
        self._flags = [] if namespace is None else ["--namespace", namespace]

    def ask(self, *words: str, stdin: str = "") -> str:
        """What kubectl prints; raises LaunchFailed."""
        return called("kubectl", *self._flags, *words, stdin=stdin)

    def check(self, claim: str) -> None:
        """Refuse what would wait for ever.

        Raises:
            ConfigError: the cluster has no KubeRay, or no such volume.
            LaunchFailed: it doesn't answer.
        """
        kinds = self.ask("api-resources", "--api-group=ray.io", "--output=name").split()
        if "rayjobs.ray.io" not in kinds:
            raise ConfigError(
                "k8s: the cluster knows no RayJob: install KubeRay's operator in it (its Helm "
                "chart is kuberay-operator)"
            )
        if not self.ask("get", "pvc", claim, "--ignore-not-found", "--output=name").strip():
            raise ConfigError(
                f"k8s: volume_claim={claim!r} isn't there: create a PersistentVolumeClaim of that "
                "name, or name another one with --volume-claim"
            )

    def create(self, manifest: dict[str, Any]) -> None:
        self.ask("create", "--filename=-", stdin=json.dumps(manifest))

    def delete(self, name: str) -> None:
        """The RayJob, and with it all that it has made."""
        with contextlib.suppress(LaunchFailed):
            self.ask("delete", "rayjob", name, "--ignore-not-found", "--wait=false")

    def follow(self, name: str, say: Callable[[str], None]) -> int:
        """Show what a RayJob prints until it has ended; the exit status.

        Raises:
            LaunchFailed: one of its pods can't start, or it is gone.
        """
        told = ""
        logs: subprocess.Popen[bytes] | None = None
        try:
            while True:
                state = json.loads(self.ask("get", "rayjob", name, "--output=json"))
                status = state.get("status", {})
                stage, end = status.get("jobDeploymentStatus", "New"), status.get("jobStatus", "")
                what = f"{stage} {end}".strip()
                if what != told:
                    say(f"rayjob {name}: {what} {status.get('message', '')}".rstrip())
                    told = what
                if stage in ("Complete", "Failed"):
                    return 0 if end == "SUCCEEDED" else 1
                if stage in ("New", "Initializing", "Waiting", "Retrying"):
                    self._check_pods(name)
                elif end == "RUNNING" and (logs is None or logs.poll()):  # or it was cut off
                    since = [] if logs is None else [f"--since={math.ceil(_LOOK_S)}s"]
                    words = ["kubectl", *self._flags, "logs", "--follow", *since, f"job/{name}"]
                    logs = subprocess.Popen(words, stdin=subprocess.DEVNULL)
                time.sleep(_LOOK_S)
        finally:
            if logs is not None:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    logs.wait(_END_S)
                logs.kill()

    def _check_pods(self, name: str) -> None:
        found = self.ask("get", "pods", f"--selector={_BY_JOB}={name}", "--output=json")
        for pod in json.loads(found).get("items", []):
            for one in pod.get("status", {}).get("containerStatuses", []):
                waiting = one.get("state", {}).get("waiting", {})
                if waiting.get("reason") in _HOPELESS:
                    raise LaunchFailed(
                        f"pod {pod['metadata']['name']} can't start: {waiting['reason']} "
                        f"({waiting.get('message') or one.get('image')}); see the image, and "
                        "whether its nodes may pull it"
                    )

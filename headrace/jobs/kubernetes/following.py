"""Applies, follows and deletes a RayJob through kubectl with the user's credentials."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import time
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from headrace.errors import ConfigError, LaunchFailed
from headrace.jobs.kubernetes.manifest import LABEL
from headrace.jobs.programs import called, require_programs

_LOOK_S = 2.0
_PAUSE_S = 5.0  # before a failed kubectl is called again
_SILENT_S = 600.0  # timeout without an answer before a RayJob is no longer followed
_DELETE_TRIES = 5
_END_S = 15.0  # for the last of the output
_HOPELESS = {
    "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError",
    "CreateContainerError", "CrashLoopBackOff", "RunContainerError",
}  # fmt: skip
_ENDS = ("Complete", "Failed", "ValidationFailed")
_STARTING = ("New", "Initializing", "Running")  # stages in which pods start
_BEFORE = ("New", "Initializing", "Waiting", "Retrying")  # stages in which nothing runs
_CLUSTER = "ray.io/cluster"  # KubeRay's label of Ray's pods


class Hopeless(LaunchFailed):
    """Error of a RayJob that can never run: a pod can't start, or the job was deleted."""


class Kubernetes:
    """Kubernetes cluster of kubectl, in one namespace; None: kubectl's default."""

    def __init__(self, namespace: str | None) -> None:
        require_programs(
            "kubectl",
            remedy="install it and connect it to your cluster, or use --dry-run",
        )
        self._flags = [] if namespace is None else ["--namespace", namespace]
        self._told: set[str] = set()  # reasons why pods have no node

    def ask(self, *words: str, stdin: str = "") -> str:
        """Return the output of kubectl; raises LaunchFailed."""
        return called("kubectl", *self._flags, *words, stdin=stdin)

    def by_hand(self, *words: str) -> str:
        """Return the command as a user would type it."""
        return f"`{shlex.join(['kubectl', *self._flags, *words])}`"

    def check(self, claim: str) -> None:
        """Refuse jobs that would wait forever.

        Raises:
            ConfigError: the cluster lacks KubeRay or the volume.
            LaunchFailed: the cluster doesn't answer.
        """
        kinds = self.ask("api-resources", "--api-group=ray.io", "--output=name").split()
        if "rayjobs.ray.io" not in kinds:
            raise ConfigError(
                "k8s: the cluster has no RayJob resource: install KubeRay's operator (its Helm "
                "chart is kuberay-operator)"
            )
        if not self.ask("get", "pvc", claim, "--ignore-not-found", "--output=name").strip():
            raise ConfigError(
                f"k8s: volume_claim={claim!r} doesn't exist: create a PersistentVolumeClaim of "
                "that "
                "name, or name another one with --volume-claim"
            )

    def create(self, manifest: str) -> None:
        """Create the resources of a manifest, given as YAML."""
        self.ask("create", "--filename=-", stdin=manifest)

    def delete(self, name: str, say: Callable[[str], None]) -> None:
        """Delete the RayJob and all its resources; print the manual command if that fails."""
        say(f"deleting rayjob {name}")
        why = "interrupted"
        with contextlib.suppress(KeyboardInterrupt):
            for attempt in range(_DELETE_TRIES):
                time.sleep(_PAUSE_S if attempt else 0.0)
                try:
                    self.ask("delete", "rayjob", name, "--ignore-not-found", "--wait=false")
                    return
                except LaunchFailed as error:
                    why = str(error)
        again = self.by_hand("delete", "rayjob", name)
        say(f"rayjob {name} is not deleted ({why}): {again} does it")

    def follow(self, name: str, say: Callable[[str], None]) -> int:
        """Print a RayJob's output until it has ended; return the exit status.

        Raises:
            Hopeless: it can never run.
            LaunchFailed: the cluster doesn't answer; the RayJob keeps running.
        """
        printed, output = "", _Output(["kubectl", *self._flags, "logs", "--follow", f"job/{name}"])
        try:
            while True:
                status = self._status(name, say)
                stage, end = status.get("jobDeploymentStatus", "New"), status.get("jobStatus", "")
                line = f"{stage} {end}".strip()
                if line != printed:
                    say(f"rayjob {name}: {line} {status.get('message', '')}".rstrip())
                    printed = line
                failed = end == "FAILED" and status.get("reason") == "AppFailed"
                if failed or stage in _ENDS:  # a new cluster can't fix the command
                    return 0 if end == "SUCCEEDED" else 1
                output.show(end == "RUNNING" and stage not in _BEFORE)
                time.sleep(_LOOK_S)
        finally:
            output.close()

    def _status(self, name: str, say: Callable[[str], None]) -> dict[str, Any]:
        """Return a RayJob's status, retrying until there is an answer."""
        silent_since = None
        while True:
            try:
                return self._look(name, say)
            except Hopeless:
                raise
            except LaunchFailed as error:
                now = time.monotonic()
                if silent_since is None:
                    silent_since = now
                    say(f"{error}; the run continues, and kubectl is retried for {_SILENT_S:g} s")
                elif now - silent_since > _SILENT_S:
                    raise LaunchFailed(
                        f"{error}, for {_SILENT_S:g} s; rayjob {name} keeps running: "
                        f"{self.by_hand('get', 'rayjob', name)} shows it, "
                        f"{self.by_hand('delete', 'rayjob', name)} ends it"
                    ) from None
                time.sleep(_PAUSE_S)

    def _look(self, name: str, say: Callable[[str], None]) -> dict[str, Any]:
        answer = self.ask("get", "rayjob", name, "--ignore-not-found", "--output=json")
        if not answer.strip():
            raise Hopeless(f"rayjob {name} was deleted")
        status = json.loads(answer).get("status", {})
        stage, end = status.get("jobDeploymentStatus", "New"), status.get("jobStatus", "")
        if stage in _STARTING and end in ("", "PENDING"):
            self._check_pods(name, status.get("rayClusterName"), say)
        return status

    def _check_pods(self, name: str, cluster: str | None, say: Callable[[str], None]) -> None:
        """Raise Hopeless for a pod that can't start; print why a pod has no node."""
        pods = self.ask("get", "pods", f"--selector={LABEL}={name}", "--output=json")
        for pod in json.loads(pods).get("items", []):
            about, status = pod["metadata"], pod.get("status", {})
            if about.get("labels", {}).get(_CLUSTER, cluster) != cluster:  # which was lost
                continue
            for one in status.get("conditions", []):
                why = one.get("message") or one.get("reason") or "no reason is given"
                is_placed = (one["type"], one["status"]) != ("PodScheduled", "False")
                if not is_placed and why not in self._told:
                    self._told.add(why)
                    say(f"pod {about['name']} waits for a node: {why}")
            kinds = ("initContainerStatuses", "containerStatuses")
            for one in (one for kind in kinds for one in status.get(kind, [])):
                waiting = one.get("state", {}).get("waiting", {})
                if waiting.get("reason") in _HOPELESS:
                    raise Hopeless(
                        f"pod {about['name']} can't start: {waiting['reason']} "
                        f"({waiting.get('message') or one.get('image')}); check the image, and "
                        "whether the nodes may pull it"
                    )


class _Output:
    """Output of a RayJob's command; an interrupted stream resumes where it was last open."""

    def __init__(self, command: list[str]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._open_at = ""  # by the clock, to exclude an older job's output

    def show(self, runs: bool) -> None:
        """Restart the stream if it ended; ``runs``: there may be output."""
        if self._process is not None:
            if self._process.poll() is None:
                self._open_at = _now()
                return
            if self._process.returncode == 0 and runs:  # the stream was complete
                return
            self._process = None
        if runs:
            since = [f"--since-time={self._open_at}"] if self._open_at else []
            self._process = subprocess.Popen([*self._command, *since], stdin=subprocess.DEVNULL)

    def close(self) -> None:
        """Wait for the rest of the output."""
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_END_S)
            self._process.kill()


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")

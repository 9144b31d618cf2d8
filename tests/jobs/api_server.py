"""Emulated Kubernetes API server with an operator in the role of KubeRay, for tests.

python api_server.py FOLDER [without-kuberay] [bad-image] [fails] [stays]

It writes FOLDER/kubeconfig and serves until it is killed. FOLDER/made.json is the RayJob that was
created, and FOLDER/deleted exists once it was deleted.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import kmock
from kuberay import labels, selected

JOBS, CLAIMS = ("batch", "v1", "jobs"), ("", "v1", "persistentvolumeclaims")
PODS, RAYJOBS = ("", "v1", "pods"), ("ray.io", "v1", "rayjobs")
CLUSTER = "x-1"
KINDS = {PODS: "Pod", CLAIMS: "PersistentVolumeClaim", JOBS: "Job", RAYJOBS: "RayJob"}
VERBS = {"get", "list", "watch", "create", "update", "patch", "delete"}
CHECKED = {  # tells kubectl that the server validates unknown fields
    "openapi": "3.0.0",
    "info": {"title": "emulated", "version": "1"},
    "paths": {
        "/apis/ray.io/v1/namespaces/{namespace}/rayjobs/{name}": {
            "patch": {
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "x-kubernetes-group-version-kind": {
                    "group": "ray.io", "version": "v1", "kind": "RayJob",
                },
            }
        }
    },
}  # fmt: skip


class Operator:
    """Moves RayJobs through their stages."""

    def __init__(self, emulator: Any, folder: Path, flags: list[str]) -> None:
        self.emulator, self.folder, self.flags = emulator, folder, flags
        self.seen = {"Initializing": asyncio.Event(), "Running": asyncio.Event()}

    def logged(self, request: Any) -> bytes:
        """Return the run's output while it runs."""
        self.seen["Running"].set()
        return b"the run says this\n"

    def listed(self, request: Any) -> dict[str, Any]:
        """Return the pods of a selector: a head, and a submitter unless the image is bad."""
        self.seen["Initializing"].set()
        waiting = {"reason": "ImagePullBackOff", "message": "no such image"}
        state = {"waiting": waiting} if "bad-image" in self.flags else {"running": {}}
        pods = [
            {
                "apiVersion": "v1", "kind": "Pod",
                "metadata": {"name": kind, "namespace": "lab", "labels": self.labels(kind)},
                "spec": {"containers": [{"name": "main", "image": "x"}]},
                "status": {"containerStatuses": [{"name": "main", "image": "x", "state": state}]},
            }
            for kind in (("head",) if "bad-image" in self.flags else ("head", "submitter"))
        ]  # fmt: skip
        found = selected(pods, request.params.get("labelSelector", ""))
        return {"apiVersion": "v1", "kind": "PodList", "metadata": {}, "items": found}

    def labels(self, kind: str) -> dict[str, str]:
        made = json.loads((self.folder / "made.json").read_text())
        return labels(made, kind, CLUSTER) | ({"job": "x"} if kind == "submitter" else {})

    async def work(self) -> None:
        """Serve until the parent process ends."""
        parent = os.getppid()
        while os.getppid() == parent:
            await asyncio.sleep(0.1)
            for key, history in list(self.emulator.objects.items()):
                if key[0].plural == "rayjobs":
                    await self.step(key, history)

    async def step(self, key: Any, history: Any) -> None:
        name = key[2]
        if history.deleted:
            (self.folder / "deleted").write_text(name)
            return
        made = self.folder / "made.json"
        if made.exists():
            return
        made.write_text(json.dumps(history.raw))
        selector = {"matchLabels": {"job": "x"}}
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name, "namespace": key[1]},
            "spec": {"selector": selector, "template": {}},
        }
        self.emulator.objects[kmock.resource(*JOBS), key[1], name] = job
        stages = [("Initializing", ""), ("Running", "RUNNING")]
        if "bad-image" in self.flags:
            stages = stages[:1]
        elif "stays" not in self.flags:
            fails = "fails" in self.flags
            stages.append(("Failed", "FAILED") if fails else ("Complete", "SUCCEEDED"))
        for stage, status in stages:
            history.patch(
                {
                    "status": {
                        "jobDeploymentStatus": stage,
                        "jobStatus": status,
                        "rayClusterName": CLUSTER,
                    }
                }
            )
            if stage in self.seen:
                with contextlib.suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self.seen[stage].wait(), 60.0)


async def serve(folder: Path, flags: list[str]) -> None:
    emulator = kmock.KubernetesEmulator()
    for resource, kind in KINDS.items():
        if resource != RAYJOBS or "without-kuberay" not in flags:
            emulator.resources[kmock.resource(*resource)] = kmock.ResourceInfo(
                namespaced=True, kind=kind, singular=kind.lower(), verbs=VERBS
            )
    operator = Operator(emulator, folder, flags)
    metadata = {"name": "headrace-runs", "namespace": "lab"}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": metadata}
    emulator.objects[kmock.resource(*CLAIMS), "lab", "headrace-runs"] = claim
    emulator["/api/v1"] << {  # kmock says groupVersion "/v1"
        "apiVersion": "v1", "kind": "APIResourceList", "groupVersion": "v1",
        "resources": [
            {"name": name, "kind": kind, "singularName": kind.lower(), "namespaced": True,
             "shortNames": short, "verbs": sorted(VERBS)}
            for name, kind, short in (("pods", "Pod", []), ("pods/log", "Pod", []),
                                      ("persistentvolumeclaims", "PersistentVolumeClaim", ["pvc"]))
        ],
    }  # fmt: skip
    emulator["/openapi/v3"] << {"paths": {"apis/ray.io/v1": {"serverRelativeURL": "/openapi/v3/x"}}}
    emulator["/openapi/v3/x"] << CHECKED
    emulator["/api/v1/namespaces/lab/pods/submitter/log"] << operator.logged
    emulator["/api/v1/namespaces/lab/pods"] << operator.listed
    async with kmock.Server(emulator, host="127.0.0.1") as server:
        access = {
            "apiVersion": "v1", "kind": "Config", "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": str(server.url).rstrip("/")}}],
            "users": [{"name": "it", "user": {"token": "x"}}],
            "contexts": [
                {"name": "it", "context": {"cluster": "it", "user": "it", "namespace": "lab"}}
            ],
        }  # fmt: skip
        (folder / "kubeconfig").write_text(json.dumps(access))
        await operator.work()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), sys.argv[2:]))

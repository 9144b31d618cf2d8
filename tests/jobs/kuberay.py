"""What stand-ins of Kubernetes have to know of KubeRay: labels of pods, and what a selector finds.

python kuberay.py "WORDS OF KUBECTL" MADE.YAML < PODS.JSON     the pods that it is to show
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def labels(made: dict[str, Any], kind: str, cluster: str) -> dict[str, str]:
    """Of a pod of a RayJob: a ``head``, a ``worker`` or the ``submitter``.

    As KubeRay's ``labelPod`` and ``getSubmitterTemplate`` make them: pods of Ray know their
    cluster and not their RayJob, but for what the manifest's templates say.
    """
    spec = made["spec"]
    if kind == "submitter":
        own = {"ray.io/originated-from-cr-name": made["metadata"]["name"]}
        return labels_of(spec["submitterPodTemplate"]) | own
    groups = [spec["rayClusterSpec"]["headGroupSpec"]]
    groups += spec["rayClusterSpec"].get("workerGroupSpecs", [])
    template = groups[kind == "worker"]["template"]
    return labels_of(template) | {"ray.io/cluster": cluster, "ray.io/node-type": kind}


def labels_of(thing: dict[str, Any]) -> dict[str, str]:
    return thing.get("metadata", {}).get("labels", {})


def selected(pods: list[dict[str, Any]], selector: str) -> list[dict[str, Any]]:
    """Those that a selector of labels and values finds."""
    wanted = dict(part.split("=") for part in selector.split(",") if part)
    return [pod for pod in pods if labels_of(pod).items() >= wanted.items()]


def main(words: str, made: str) -> None:
    """Print what `kubectl get pods` does; each pod stands there with its kind and its cluster."""
    import yaml

    with open(made) as file:
        job = yaml.safe_load(file)
    pods = json.load(sys.stdin).get("items", [])
    for pod in pods:
        kind, cluster = pod["metadata"].pop("of")
        pod["metadata"]["labels"] = labels(job, kind, cluster)
    [selector] = re.findall(r"--selector=(\S+)", words) or [""]
    print(json.dumps({"items": selected(pods, selector)}))


if __name__ == "__main__":
    main(*sys.argv[1:])

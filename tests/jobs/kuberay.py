"""KubeRay's labels and selectors of pods, for emulated clusters.

python kuberay.py "WORDS OF KUBECTL" MADE.YAML < PODS.JSON     print the pods of a command
"""

from __future__ import annotations

import json
import re
import sys
from typing import Any


def labels(made: dict[str, Any], kind: str, cluster: str) -> dict[str, str]:
    """Return the labels of a RayJob's pod: a ``head``, a ``worker`` or the ``submitter``.

    They follow KubeRay's ``labelPod`` and ``getSubmitterTemplate``: pods of Ray have the name of
    their cluster but not of their RayJob, except for labels in the manifest's templates.
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
    """Return the pods that a selector of labels and values matches."""
    wanted = dict(part.split("=") for part in selector.split(",") if part)
    return [pod for pod in pods if labels_of(pod).items() >= wanted.items()]


def main(words: str, made: str) -> None:
    """Print the output of `kubectl get pods`, with kind and cluster of each pod."""
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

"""``python -m headrace.ray.ready NODES``: waits until a Ray cluster has that many nodes.

It prints the names of running nodes whenever they change. It is a separate process, because a Ray
driver installs its own signal handlers.
"""

from __future__ import annotations

import math
import os
import sys
import time

from headrace.ray.node import await_head
from headrace.ray.connection import RayCluster


def main(required: int) -> int:
    """Connect to the cluster that the environment names, and wait for its nodes."""
    await_head(os.environ["RAY_ADDRESS"], math.inf)
    ray = RayCluster("auto", "headrace launch", 0.0).api
    before: list[str] = []
    while len(before) < required:
        names = sorted(node["NodeName"] for node in ray.nodes() if node["Alive"])
        if names != before:
            print(*names, flush=True)
            before = names
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

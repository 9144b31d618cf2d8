"""``python -m headrace.jobs.ready NODES``: waits until a Ray cluster has so many nodes.

It prints the names of those that are up whenever that changes. A process of its own, as a driver
of Ray handles signals in its own way.
"""

from __future__ import annotations

import math
import os
import sys
import time

from headrace.jobs.ray_node import await_head
from headrace.processes.ray_connection import RayCluster


def main(wanted: int) -> int:
    """Connect to the cluster that the environment names, and wait."""
    await_head(os.environ["RAY_ADDRESS"], math.inf)
    ray = RayCluster("auto", "headrace launch", 0.0).api
    before: list[str] = []
    while len(before) < wanted:
        names = sorted(node["NodeName"] for node in ray.nodes() if node["Alive"])
        if names != before:
            print(*names, flush=True)
            before = names
        time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))

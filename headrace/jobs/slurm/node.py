"""What runs on each node of a job: one Ray node, for as long as standard input is open.

srun starts it and hands it the head's standard input, of which the first line are its orders; so
it ends with whoever started it, and the token stands in no file and on no command line. It answers
with lines of JSON: what is wrong here, or that SLURM has sent SIGTERM, which the head acts on.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

from headrace.errors import HeadraceError
from headrace.jobs.ray_node import Ray, RayNode, await_head
from headrace.jobs.versions import difference
from headrace.processes import num_cores

_PROBE_S = 10.0  # in which a file of another node must be seen: network file systems take seconds
_LOOK_S = 0.5
_LONGEST = 1000  # letters of a line: srun breaks those that are longer


@dataclass(frozen=True)
class NodeSpec:
    """What a node is told."""

    ray: Ray
    head: str  # the node that Ray's head runs on
    gpus: int
    versions: dict[str, str]
    probe: str  # a file that every node must see; "": there is none
    start_timeout_s: float

    def write(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> NodeSpec:
        values = json.loads(text)
        return NodeSpec(**values | {"ray": Ray(**values["ray"])})


def say(**what: Any) -> None:
    """Tell the head, in words that are cut to a line; it is gone where nobody listens."""
    cut = {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in what.items()}
    while len(line := json.dumps({"node": _name(), **cut})) > _LONGEST:
        cut["wrong"] = cut["wrong"][:-10]
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _name() -> str:
    return os.environ.get("SLURMD_NODENAME", "this node")


def wrong_here(orders: NodeSpec) -> str:
    """Why this node can't take part, as a sentence without its subject; "": it can."""
    if said := difference(orders.versions):
        return said
    deadline = time.monotonic() + _PROBE_S
    while orders.probe and not os.path.exists(orders.probe):
        if time.monotonic() > deadline:
            folder = os.path.dirname(orders.probe)
            return (
                f"doesn't see the folder {folder} of {orders.head}, so a run that is queued again "
                "there would not find its checkpoints: choose --run-dir on a file system that all "
                "nodes share"
            )
        time.sleep(0.2)
    if _name() != orders.head and not await_head(orders.ray.address, orders.start_timeout_s):
        return (
            f"doesn't reach {orders.ray.address} of {orders.head} in {orders.start_timeout_s:g} s: "
            "open the ports between nodes, or see why Ray's head isn't up"
        )
    return ""


def main() -> int:
    """Be a node until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: say(signal=number))
    line = sys.stdin.readline()
    if not line:
        return 0
    orders, name = NodeSpec.read(line), _name()
    if wrong := wrong_here(orders):
        say(wrong=f"{name} {wrong}")
        return 1
    cpus = int(os.environ.get("SLURM_CPUS_ON_NODE", num_cores()))
    label = f"{os.environ.get('SLURM_JOB_ID')}-{os.environ.get('SLURM_NODEID')}"
    try:
        with RayNode(orders.ray, name == orders.head, name, cpus, orders.gpus, label) as node:
            while not node.ended():
                if select.select([sys.stdin], [], [], _LOOK_S)[0] and not sys.stdin.read(1):
                    return 0
            say(wrong=f"Ray ended on {name}: {node.ended()}")
    except (HeadraceError, OSError) as error:
        say(wrong=f"{name}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

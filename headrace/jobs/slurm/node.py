"""Node process of a job: runs one Ray node while standard input is open.

srun starts it and forwards the head's standard input, whose first line is the node spec. So it ends
with the process that started it, and the token is in no file and on no command line. It answers
with lines of JSON: a problem of this node, or SIGTERM from SLURM, to which the head reacts.
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
from headrace.ray.node import Ray, RayNode, await_head
from headrace.jobs.versions import difference
from headrace.processes import num_cores

_PROBE_S = 10.0  # time for a file of another node to become visible on network file systems
_LOOK_S = 0.5
_LONGEST = 1000  # maximum letters of a line: srun breaks longer ones


@dataclass(frozen=True)
class NodeSpec:
    """Specification of a node."""

    ray: Ray
    head: str  # the node of Ray's head
    gpus: int
    versions: dict[str, str]
    probe: str  # a file that must be visible on every node; "": none
    start_timeout_s: float

    def write(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> NodeSpec:
        values = json.loads(text)
        return NodeSpec(**values | {"ray": Ray(**values["ray"])})


def say(**message: Any) -> None:
    """Send a message to the head, truncated to one line; ends if nobody reads it."""
    cut = {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in message.items()}
    while len(line := json.dumps({"node": _name(), **cut})) > _LONGEST:
        cut["wrong"] = cut["wrong"][:-10]
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _name() -> str:
    return os.environ.get("SLURMD_NODENAME", "this node")


def join_problem(orders: NodeSpec) -> str:
    """Return why this node can't join, as a sentence without its subject; "": it can."""
    if answer := difference(orders.versions):
        return answer
    deadline = time.monotonic() + _PROBE_S
    while orders.probe and not os.path.exists(orders.probe):
        if time.monotonic() > deadline:
            folder = os.path.dirname(orders.probe)
            return (
                f"doesn't see the folder {folder} of {orders.head}, so a requeued run "
                "there would not find its checkpoints: choose --run-dir on a file system that all "
                "nodes share"
            )
        time.sleep(0.2)
    if _name() != orders.head and not await_head(orders.ray.address, orders.start_timeout_s):
        return (
            f"doesn't reach {orders.ray.address} of {orders.head} in {orders.start_timeout_s:g} s: "
            "open the ports between nodes, or check why Ray's head isn't up"
        )
    return ""


def main() -> int:
    """Run a node until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: say(signal=number))
    line = sys.stdin.readline()
    if not line:
        return 0
    orders, name = NodeSpec.read(line), _name()
    if wrong := join_problem(orders):
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

"""Node process of a job: runs one Ray node while standard input is open.

srun starts it on each node and forwards the driver's standard input, so it ends with the driver,
and the token is in no file and on no command line:

    driver ── NodeSpec ─────────────► every node   checks whether it can join
    driver ◄─ address of Ray's head ─ first node   has chosen a free port
    driver ── that address ─────────► every node   starts Ray
    driver ◄─ up ──────────────────── every node

Answers are lines of JSON. A node also reports a problem, and SIGTERM from SLURM, to which the
driver reacts.
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
from headrace.jobs.slurm.queue import address_of, hostnames
from headrace.jobs.versions import difference
from headrace.processes import num_cores
from headrace.ray.node import Ray, RayNode, await_head, new_cluster

_PROBE_S = 10.0  # time for a file of another node to become visible on network file systems
_LOOK_S = 0.1
_LONGEST = 1000  # maximum letters of a line: srun breaks longer ones


@dataclass(frozen=True)
class NodeSpec:
    """Specification of a job's nodes."""

    token: str  # of the Ray cluster
    gpus: int  # of each node
    versions: dict[str, str]
    driver: str  # name of the driver's machine
    is_outside: bool  # the driver's machine is not a node of the job
    probe: str  # a file that must be visible on every node; "": none
    start_timeout_s: float

    def write(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def read(text: str) -> NodeSpec:
        return NodeSpec(**json.loads(text))


def say(**message: Any) -> None:
    """Send a message to the driver, truncated to one line; discard it if the pipe is closed."""
    cut = {key: x[:_LONGEST] if isinstance(x, str) else x for key, x in message.items()}
    while len(line := json.dumps({"node": _name(), **cut})) > _LONGEST:
        cut["wrong"] = cut["wrong"][:-10]
    try:
        print(line, flush=True)
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def _name() -> str:
    return os.environ.get("SLURMD_NODENAME", "this node")


def join_problem(spec: NodeSpec) -> str:
    """Return why this node can't join, as a sentence without its subject; "": it can."""
    if answer := difference(spec.versions, spec.driver):
        return answer
    deadline = time.monotonic() + _PROBE_S
    while spec.probe and not os.path.exists(spec.probe):
        if time.monotonic() > deadline:
            folder = os.path.dirname(spec.probe)
            return (
                f"doesn't see the folder {folder} of {spec.driver}, so a requeued run "
                "there would not find its checkpoints: choose --run-dir on a file system that all "
                "nodes share"
            )
        time.sleep(0.2)
    return ""


def _new_head(spec: NodeSpec) -> Ray:
    """Choose the address of Ray's head on this node, on the network of those that connect."""
    others = hostnames(os.environ["SLURM_JOB_NODELIST"])
    others.remove(_name())
    if others:
        return new_cluster(address_of(others[0]), spec.token)
    return new_cluster(os.environ["SLURM_SUBMIT_HOST"] if spec.is_outside else "", spec.token)


def _run(spec: NodeSpec) -> int:
    """Agree on the address of Ray's head, and run Ray until standard input ends."""
    name, is_head = _name(), os.environ.get("SLURM_NODEID") == "0"
    if is_head:
        head = _new_head(spec)
        say(address=head.address, alone=head.alone)
    line = sys.stdin.readline()
    if not line:
        return 0
    ray = Ray(token=spec.token, **json.loads(line))
    if not is_head and not await_head(ray.address, spec.start_timeout_s):
        say(
            wrong=f"{name} doesn't reach Ray's head at {ray.address} in {spec.start_timeout_s:g} "
            "s: open the ports between nodes, or check why Ray's head isn't up"
        )
        return 1
    cpus = int(os.environ.get("SLURM_CPUS_ON_NODE", num_cores()))
    label = f"{os.environ.get('SLURM_JOB_ID')}-{os.environ.get('SLURM_NODEID')}"
    with RayNode(ray, is_head, name, cpus, spec.gpus, label) as node:
        was_up = False
        while not (reason := node.ended()):
            if not was_up and node.is_up():
                was_up = True
                say(up=True)
            if select.select([sys.stdin], [], [], _LOOK_S)[0] and not sys.stdin.read(1):
                return 0
        say(wrong=f"Ray ended on {name}: {reason}")
    return 1


def main() -> int:
    """Run a node until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, frame: say(signal=number))
    line = sys.stdin.readline()
    if not line:
        return 0
    spec = NodeSpec.read(line)
    if wrong := join_problem(spec):
        say(wrong=f"{_name()} {wrong}")
        return 1
    try:
        return _run(spec)
    except (HeadraceError, OSError) as error:
        say(wrong=f"{_name()}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())

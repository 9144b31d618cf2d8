"""Ray cluster on the nodes of a SLURM job that this program requests and drives from outside.

    this program ── stdin ──► salloc ── waits in the queue ──► srun ──► node.py on each node
         └── stdin ──► node.py on this machine, without processors, as a Ray driver requires

All of them end when standard input closes, so the job ends with this program, however it ends.
"""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.errors import LaunchFailed
from headrace.jobs.slurm.allocation import NodeProcesses, await_ray, new_spec, on_each_node
from headrace.jobs.slurm.following import cancelled
from headrace.jobs.slurm.job import Job
from headrace.jobs.slurm.queue import State, cancel, hostnames, states
from headrace.ray.node import Ray

_LOOK_S = 1.0
_NUMBER = re.compile(r"salloc: (Pending|Granted) job allocation (\d+)")


class RequestedJob(NamedTuple):
    """A job that runs Ray on its nodes."""

    number: str
    ray: Ray

    def end_reason(self) -> str:
        """Return how the job has ended, as SLURM's state; "" while it runs."""
        with contextlib.suppress(LaunchFailed):
            [state] = states(self.number)
            return state.name if state.ended else ""
        return ""


@contextlib.contextmanager
def requested(
    job: Job, queue_timeout_s: float, say: Callable[[str], None]
) -> Iterator[RequestedJob]:
    """Request nodes from SLURM, and run Ray on them inside the block.

    Args:
        job: resources to request.
        queue_timeout_s: timeout in the queue in seconds, after which the job is cancelled.
        say: called with status messages.

    Raises:
        LaunchFailed: the job was rejected, or waits for too long, or Ray didn't start in time;
            nothing is left running.
    """
    name, module = socket.gethostname(), "headrace.jobs.slurm.node"
    spec = new_spec(job.gpus_per_node, name, True, "", job.start_timeout_s)
    flags = [f"--{option}" + (f"={value}" if value else "") for option, value in job.resources]
    command = ["salloc", f"--job-name={job.job_name}", f"--nodes={job.nodes}"]
    command += ["--ntasks-per-node=1", *flags, *on_each_node(job.nodes, "-m", module)]
    with contextlib.ExitStack() as stack:
        salloc = NodeProcesses(command, spec)
        stack.callback(salloc.end)
        state = _await_grant(salloc, queue_timeout_s, say)
        stack.callback(_release, salloc, state.job)
        own = {"SLURM_JOB_ID": state.job, "SLURM_NODEID": "driver", "SLURM_CPUS_ON_NODE": "0"}
        own["SLURMD_NODENAME"] = name
        here = NodeProcesses([sys.executable, "-m", module], spec, own)
        stack.callback(here.end)
        ray = await_ray([salloc, here], spec, [*hostnames(state.nodes), name])
        yield RequestedJob(state.job, ray)


def _release(salloc: NodeProcesses, job: str) -> None:
    """End the job, also where salloc had to be killed."""
    salloc.end()
    cancel(job)


def _await_grant(salloc: NodeProcesses, timeout_s: float, say: Callable[[str], None]) -> State:
    """Wait in the queue; return the state of the running job, or end salloc and cancel it."""
    deadline, printed, number = time.monotonic() + timeout_s, "", ""
    try:
        while True:
            has_ended = salloc.process.poll() is not None
            lines = [*filter(None, map(_NUMBER.match, salloc.reports.other))]
            if lines:
                number = lines[0][2]
                [state] = states(number)
                is_granted = bool(state.nodes) and lines[-1][1] == "Granted"
                status = "starts" if is_granted else state.waits
                if status != printed:
                    say(f"job {number} {status}")
                    printed = status
                if is_granted:
                    return state
            if has_ended:
                salloc.listener.join(_LOOK_S)
                words = "; ".join(salloc.reports.other[-3:])
                raise LaunchFailed(f"salloc failed: {words or salloc.process.returncode}")
            if time.monotonic() > deadline:
                limit = f"{timeout_s:g} s (queue_timeout_s)"
                raise LaunchFailed(f"job {number} waited in the queue for {limit}")
            time.sleep(_LOOK_S if printed else 0.05)
    except BaseException:
        salloc.process.terminate()  # in the queue it reads no standard input
        if number:
            cancelled(number, say)
        raise

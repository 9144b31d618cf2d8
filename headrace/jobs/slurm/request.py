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
from collections.abc import Callable
from types import TracebackType

from headrace.errors import LaunchFailed
from headrace.jobs.slurm.allocation import NodeProcesses, await_ray, new_spec, on_each_node
from headrace.jobs.slurm.following import cancelled
from headrace.jobs.slurm.job import Job
from headrace.jobs.slurm.queue import State, hostnames, states
from headrace.ray.node import Ray

_LOOK_S = 1.0
_NUMBER = re.compile(r"salloc: (Pending|Granted) job allocation (\d+)")


class RequestedAllocation:
    """Requests nodes from SLURM and runs Ray on them, inside the block.

    Args:
        job: resources to request.
        queue_timeout_s: timeout in the queue in seconds, after which the job is cancelled.
        say: called with status messages.

    Raises:
        LaunchFailed: the job was rejected, or waits for too long, or Ray didn't start in time;
            nothing is left running.
    """

    def __init__(self, job: Job, queue_timeout_s: float, say: Callable[[str], None]) -> None:
        self._request, self._timeout_s, self._say = job, queue_timeout_s, say
        driver = socket.gethostname()
        self._spec = new_spec(job.gpus_per_node, driver, True, "", job.start_timeout_s)
        self.job = ""  # its number
        self.ray: Ray

    def __enter__(self) -> RequestedAllocation:
        request = self._request
        flags = [f"--{name}" + (f"={x}" if x else "") for name, x in request.resources]
        node = ["-m", "headrace.jobs.slurm.node"]
        command = ["salloc", f"--job-name={request.job_name}", f"--nodes={request.nodes}"]
        command += ["--ntasks-per-node=1", *flags, *on_each_node(request.nodes, *node)]
        self._stack = contextlib.ExitStack()
        try:
            self._stack.callback(self._cancel)
            salloc = NodeProcesses(command, self._spec)
            self._stack.callback(salloc.end)
            try:
                hosts = hostnames(self._await_grant(salloc).nodes)
            except BaseException:
                salloc.process.terminate()  # in the queue it reads no standard input
                raise
            name = socket.gethostname()
            own = {"SLURM_JOB_ID": self.job, "SLURM_NODEID": "driver", "SLURM_CPUS_ON_NODE": "0"}
            here = NodeProcesses(
                [sys.executable, *node], self._spec, own | {"SLURMD_NODENAME": name}
            )
            self._stack.callback(here.end)
            self.ray = await_ray([salloc, here], self._spec, [*hosts, name])
        except BaseException:
            self._stack.close()
            raise
        return self

    def _await_grant(self, salloc: NodeProcesses) -> State:
        """Wait in the queue; return the state of the running job."""
        deadline, printed = time.monotonic() + self._timeout_s, ""
        while True:
            has_ended = salloc.process.poll() is not None
            lines = [*filter(None, map(_NUMBER.match, salloc.reports.other))]
            if lines:
                self.job = lines[0][2]
                [state] = states(self.job)
                if state.nodes and lines[-1][1] == "Granted":
                    self._say(f"job {self.job} starts")
                    return state
                if state.waits != printed:
                    self._say(f"job {self.job} {state.waits}")
                    printed = state.waits
            if has_ended:
                salloc.listener.join(_LOOK_S)
                words = "; ".join(salloc.reports.other[-3:])
                raise LaunchFailed(f"salloc failed: {words or salloc.process.returncode}")
            if time.monotonic() > deadline:
                limit = f"{self._timeout_s:g} s (queue_timeout_s)"
                raise LaunchFailed(f"job {self.job} waited in the queue for {limit}")
            time.sleep(_LOOK_S if printed else 0.05)

    def _cancel(self) -> None:
        if self.job and not self.end_reason():
            cancelled(self.job, self._say)

    def end_reason(self) -> str:
        """Return how the job has ended, as SLURM's state; "" while it runs."""
        with contextlib.suppress(LaunchFailed):
            [state] = states(self.job)
            return state.name if state.ended else ""
        return ""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

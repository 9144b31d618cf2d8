"""What the batch script runs on a job's first node: Ray on all nodes, then the command.

It reads its orders from standard input and returns the command's exit status. It ends the command,
so that it saves, when SLURM gives notice: SIGUSR1 some time before the time limit, and SIGTERM
before preemption (which in a time of grace only the nodes get, and are heard of). If the job still
runs when the command has ended, it queues the job again; ``scancel`` leaves no job to queue.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from headrace.errors import HeadraceError, LaunchFailed
from headrace.provision.orders import Orders
from headrace.provision.programs import called
from headrace.provision.slurm.allocation import Allocation
from headrace.provision.slurm.meeting import Listener, offered
from headrace.provision.slurm.queue import states

_SPREAD_S = 1.0  # within which SLURM's signal to a job has reached all its processes
_DEAF_S = 5.0  # a command that has been told, and runs for so long, is told again
_LOOK_S = 0.1
_KNOWN = ("SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")
_TOLD = (0, 130, 128 + signal.SIGTERM, -signal.SIGTERM)  # how a command ends that was told to


class Head:
    """The job, seen from its first node."""

    def __init__(self, orders: Orders) -> None:
        self._orders, self._job = orders, os.environ["SLURM_JOB_ID"]
        self._notice_at: float | None = None  # when SLURM told this process
        self._term_at: float | None = None
        self.run_dir = Path(_expanded(orders.run_dir)) if orders.run_dir else None
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGUSR1:
            self._notice_at = self._notice_at or time.monotonic()
        else:
            self._term_at = self._term_at or time.monotonic()

    def run(self) -> int:
        """Bring Ray up, run the command, tear down; the exit status."""
        orders, allocation = self._orders, None
        shared = self.run_dir and self.run_dir.absolute().parent
        gpus = int(os.environ.get("SLURM_GPUS_PER_NODE", "0").rpartition(":")[2])
        try:
            with contextlib.ExitStack() as stack:
                if orders.ray:
                    peer = os.environ.get("SLURM_SUBMIT_HOST", "") if orders.meet else ""
                    limit_s = orders.start_timeout_s
                    allocation = Allocation(gpus, limit_s, shared, peer, self._told)
                    stack.enter_context(allocation)
                    _say(f"Ray is up on {', '.join(allocation.hosts)} ({allocation.ray.address})")
                code = self._command(allocation)
        except LaunchFailed as error:
            if not self._told(allocation):
                _say(str(error))
                return 1
            code = 0
        if self._told(allocation) and code in _TOLD:
            return self._requeued()
        return code if code >= 0 else 128 - code

    def _told(self, allocation: Allocation | None = None) -> bool:
        """Whether SLURM has told this process, or the nodes, to end."""
        heard = allocation is not None and allocation.terminated
        return heard or self._notice_at is not None or self._term_at is not None

    def _command(self, allocation: Allocation | None) -> int:
        """Run it to its end; its exit status, negative for a signal."""
        ray = None if allocation is None else allocation.ray
        if self._orders.meet and ray is not None:
            folder = Path(self._orders.meet)
            driver = Listener(folder)
            with offered(folder, ray):
                while driver.hears() and not self._told(allocation):
                    time.sleep(1.0)
            return 0
        seed, restarts = (os.environ.get(name, "") for name in _KNOWN)
        known = {"seed": seed, "address": ray.address if ray else ""}
        words = self._orders.words(self.run_dir, restarts not in ("", "0"), **known)
        environment = ray.environment if ray else {}
        try:
            process = subprocess.Popen(words, env=os.environ | environment)
        except OSError as error:
            raise LaunchFailed(f"{words[0]} can't be started: {error}") from None
        heard_at, is_told = math.inf, False
        while process.poll() is None:
            time.sleep(_LOOK_S)
            if allocation is not None and allocation.terminated:
                heard_at = min(heard_at, time.monotonic())
            if not is_told and time.monotonic() >= self._due(heard_at):
                process.terminate()
                is_told = True
        return process.returncode

    def _due(self, heard_at: float) -> float:
        """When the command is to be told to end; ``heard_at``: nodes have told of SIGTERM."""
        if self._term_at is not None:  # which has reached the command as well
            return self._term_at + _DEAF_S
        if self._notice_at is not None:  # which was for this process alone
            return self._notice_at
        return heard_at + _SPREAD_S

    def _requeued(self) -> int:
        """Queue the job again if SLURM hasn't taken it away; the exit status otherwise."""
        name = _own_name(self._job)
        [state] = [one for one in states(self._job) if one.job == name]
        if not state.running or not self._orders.requeue:
            return 0
        _say("saved; the job queues again, and goes on from there")
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what SLURM does to a job that it requeues
        called("scontrol", "requeue", name)
        time.sleep(60.0)  # it ends this process
        return 0


def _own_name(job: str) -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return job if array is None else f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def _expanded(pattern: str) -> str:
    """What sbatch makes of a name with %j, %A and %a."""
    known = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    for name, variable in known.items():
        pattern = pattern.replace(name, os.environ.get(variable, ""))
    return pattern


def _say(text: str) -> None:
    print(f"headrace: {text}", flush=True)


def main() -> int:
    """Carry out the orders that stand in the batch script."""
    try:
        return Head(Orders.read(sys.stdin.read())).run()
    except HeadraceError as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

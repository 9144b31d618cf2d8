"""What the batch script runs on a job's first node: Ray on all nodes, then the command.

It reads its orders from standard input and returns the command's exit status. It ends the command,
so that it saves, when SLURM gives notice: SIGUSR1 some time before the time limit, and SIGTERM
before preemption (which in a time of grace only the nodes get, and are heard of). If the job still
runs when a command that was told to end has ended, it queues the job again; ``scancel`` leaves no
job to queue. A time limit that lets no start get further than the one before isn't tried again.
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
from headrace.jobs.job_spec import JobSpec, steps_saved
from headrace.jobs.programs import called
from headrace.jobs.slurm.allocation import Allocation, gpus_per_node
from headrace.jobs.slurm.queue import states
from headrace.jobs.slurm.rendezvous import HeartbeatListener, offered

_SPREAD_S = 1.0  # within which SLURM's signal to a job has reached all its processes
_LOOK_S = 0.1
_REQUEUE_TRIES = 5
_PAUSE_S = 3.0  # between them
_ENDED_S = 60.0  # in which SLURM ends what it queues again
_CUT = 128 + signal.SIGTERM  # the exit status of what was told to end, and doesn't go on
_TOLD = (0, 130, _CUT, -signal.SIGTERM)  # how a command ends that was told to


class BatchScriptHead:
    """The job, seen from its first node."""

    def __init__(self, orders: JobSpec) -> None:
        self._orders, self._job = orders, _own_name(os.environ["SLURM_JOB_ID"])
        self._notice_at: float | None = None  # when SLURM told this process
        self._term_at: float | None = None
        self._allocation: Allocation | None = None
        self._saved = 0  # steps behind the checkpoint that this start begins with
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
        orders = self._orders
        try:
            with contextlib.ExitStack() as stack:
                if orders.ray:
                    self._allocation = self._nodes()
                    stack.enter_context(self._allocation)
                    where = f"{', '.join(self._allocation.hosts)} ({self._allocation.ray.address})"
                    _say(f"Ray is up on {where}")
                code = self._meet() if orders.meet else self._command()
                was_told = self._was_told(code)
        except LaunchFailed as error:
            _say(str(error))
            if self._told() and self._notice_at is None:  # preempted, which is no fault of its
                return self._requeued()
            if self._notice_at is not None:
                _say("the notice before the time limit came too early: raise --time-limit")
            return 1
        if not was_told or code not in _TOLD:
            return code if code >= 0 else 128 - code
        saved = steps_saved(self.run_dir)
        if self._notice_at is not None and self.run_dir is not None and saved <= self._saved:
            _say(
                f"from {saved} steps it got to no later checkpoint before the notice of the time "
                "limit, so the job doesn't queue again: raise --time-limit"
            )
            return _CUT
        return self._requeued()

    def _nodes(self) -> Allocation:
        shared = self.run_dir and self.run_dir.absolute().parent
        peer = os.environ.get("SLURM_SUBMIT_HOST", "") if self._orders.meet else ""
        timeout_s = self._orders.start_timeout_s
        return Allocation(gpus_per_node(), timeout_s, shared, peer, self._told)

    def _told(self) -> bool:
        """Whether SLURM has told this process, or the nodes, to end."""
        return self._notice_at is not None or self._term_at is not None or self._heard()

    def _heard(self) -> bool:
        return self._allocation is not None and self._allocation.terminated

    def _was_told(self, code: int) -> bool:
        """Whether a command that has just ended had been told to."""
        until = time.monotonic() + (_SPREAD_S if code != 0 and code in _TOLD else 0.0)
        while not self._told() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self._told()

    def _meet(self) -> int:
        """Offer the cluster to a driver elsewhere, for as long as it is heard of."""
        assert self._allocation is not None
        folder = Path(self._orders.meet)
        driver = HeartbeatListener(folder)
        with offered(folder, self._allocation.ray):
            while driver.hears() and not self._told():
                self._tell()
                time.sleep(1.0)
        return 0

    def _command(self) -> int:
        """Run it to its end; its exit status, negative for a signal."""
        ray = None if self._allocation is None else self._allocation.ray
        known = {"seed": os.environ.get("SLURM_ARRAY_TASK_ID", "")}
        known["address"] = ray.address if ray else ""
        words = self._orders.words(self.run_dir, f"{self._orders.key} {self._job}", **known)
        self._saved = steps_saved(self.run_dir)
        environment = ray.environment if ray else {}
        if self._told():
            raise LaunchFailed("told to end before the command began")
        try:
            process = subprocess.Popen(words, env=os.environ | environment)
        except OSError as error:
            raise LaunchFailed(f"{words[0]} can't be started: {error}") from None
        heard_at, is_told = math.inf, False
        while process.poll() is None:
            time.sleep(_LOOK_S)
            if self._heard():
                heard_at = min(heard_at, time.monotonic())
            self._tell()
            if not is_told and time.monotonic() >= self._due(heard_at):
                process.terminate()
                is_told = True
        return process.returncode

    def _tell(self) -> None:
        """Say what nodes have said of their end, unless SLURM ends them all."""
        if self._allocation is not None and not self._told():
            for words in self._allocation.news():
                _say(words)

    def _due(self, heard_at: float) -> float:
        """When the command is to be told to end; ``heard_at``: nodes have told of SIGTERM."""
        if self._term_at is not None:  # SLURM tells the command, too, but not if only this one
            return self._term_at + _SPREAD_S
        if self._notice_at is not None:  # which was for this process alone
            return self._notice_at
        return heard_at + _SPREAD_S

    def _requeued(self) -> int:
        """Queue the job again unless SLURM has taken it away; the exit status if that fails."""
        why = ""
        for attempt in range(_REQUEUE_TRIES):
            time.sleep(_PAUSE_S if attempt else 0.0)
            try:
                if not any(one.running and one.job == self._job for one in states(self._job)):
                    return _CUT
                if not self._orders.requeue:
                    _say("told to end before it was done; the job doesn't queue again")
                    return _CUT
                if not why:
                    _say("saved; the job queues again, and goes on from there")
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which SLURM sends to end it
                called("scontrol", "requeue", self._job)
                time.sleep(_ENDED_S)
                return _CUT
            except LaunchFailed as error:
                why = str(error)
        _say(f"the job can't queue again ({why}): `scontrol requeue {self._job}` does it")
        return _CUT


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
        return BatchScriptHead(JobSpec.read(sys.stdin.read())).run()
    except HeadraceError as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""Head process of a batch script: starts Ray on all nodes, then runs the command.

It reads the job spec from standard input and returns the command's exit status. It stops the
command, which then saves, on SLURM's notice: SIGUSR1 before the time limit, and SIGTERM before
preemption (sent only to the nodes in the grace period, which report it). If the job still runs
after a stopped command has ended, the job is requeued; ``scancel`` leaves no job to requeue. A job
is not requeued if a start made no progress before the time limit.
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
from headrace.rundir.checksums import JOB

_SPREAD_S = 1.0  # delay within which SLURM's signal reaches all processes of a job
_LOOK_S = 0.1
_REQUEUE_TRIES = 5
_PAUSE_S = 3.0  # polling interval
_ENDED_S = 60.0  # delay within which SLURM ends a requeued job
_CUT = 128 + signal.SIGTERM  # exit status of a stopped command that doesn't resume
_TOLD = (0, 130, _CUT, -signal.SIGTERM)  # exit codes of a stopped command


class BatchScriptHead:
    """Head process on the job's first node."""

    def __init__(self, spec: JobSpec) -> None:
        self._spec, self._job = spec, _own_name(os.environ["SLURM_JOB_ID"])
        self._key = os.environ[JOB] = f"{spec.key} {self._job}"  # inherited by Ray's processes
        self._notice_at: float | None = None  # time of SLURM's signal to this process
        self._term_at: float | None = None
        self._allocation: Allocation | None = None
        self._saved = 0  # steps of the checkpoint that this start resumes from
        self.run_dir = Path(_expanded(spec.run_dir)) if spec.run_dir else None
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._handle)

    def _handle(self, number: int, frame: object) -> None:
        if number == signal.SIGUSR1:
            self._notice_at = self._notice_at or time.monotonic()
        else:
            self._term_at = self._term_at or time.monotonic()

    def run(self) -> int:
        """Start Ray, run the command and clean up; return the exit status."""
        spec = self._spec
        try:
            with contextlib.ExitStack() as stack:
                if spec.ray:
                    self._allocation = self._nodes()
                    stack.enter_context(self._allocation)
                    where = f"{', '.join(self._allocation.hosts)} ({self._allocation.ray.address})"
                    _say(f"Ray is up on {where}")
                code = self._command()
                was_told = self._was_stopped(code)
        except LaunchFailed as error:
            _say(str(error))
            if self._stop_requested() and self._notice_at is None:  # preempted, so not a failure
                return self._requeued()
            if self._notice_at is not None:
                _say("the notice before the time limit came too early: raise --time-limit")
            return 1
        if not was_told or code not in _TOLD:
            return code if code >= 0 else 128 - code
        saved = steps_saved(self.run_dir)
        if self._notice_at is not None and self.run_dir is not None and saved <= self._saved:
            _say(
                f"it resumed at {saved} steps and saved no later checkpoint before the notice of "
                "the time limit, so the job is not requeued: raise --time-limit"
            )
            return _CUT
        return self._requeued()

    def _nodes(self) -> Allocation:
        shared = self.run_dir and self.run_dir.absolute().parent
        timeout_s = self._spec.start_timeout_s
        return Allocation(gpus_per_node(), timeout_s, shared, self._stop_requested)

    def _stop_requested(self) -> bool:
        """Return whether SLURM has signalled this process, or the nodes, to end."""
        return self._notice_at is not None or self._term_at is not None or self._heard()

    def _heard(self) -> bool:
        return self._allocation is not None and self._allocation.terminated

    def _was_stopped(self, code: int) -> bool:
        """Return whether a command that has just ended had been stopped."""
        until = time.monotonic() + (_SPREAD_S if code != 0 and code in _TOLD else 0.0)
        while not self._stop_requested() and time.monotonic() < until:
            time.sleep(_LOOK_S)
        return self._stop_requested()

    def _command(self) -> int:
        """Run the command to its end; return its exit status, negative for a signal."""
        ray = None if self._allocation is None else self._allocation.ray
        substitutions = {"seed": os.environ.get("SLURM_ARRAY_TASK_ID", "")}
        substitutions["address"] = ray.address if ray else ""
        words = self._spec.words(self.run_dir, self._key, **substitutions)
        self._saved = steps_saved(self.run_dir)
        environment = ray.environment if ray else {}
        if self._stop_requested():
            raise LaunchFailed("stopped before the command started")
        try:
            process = subprocess.Popen(words, env=os.environ | environment)
        except OSError as error:
            raise LaunchFailed(f"{words[0]} can't be started: {error}") from None
        heard_at, is_told = math.inf, False
        while process.poll() is None:
            time.sleep(_LOOK_S)
            if self._heard():
                heard_at = min(heard_at, time.monotonic())
            self._report_ends()
            if not is_told and time.monotonic() >= self._due(heard_at):
                process.terminate()
                is_told = True
        return process.returncode

    def _report_ends(self) -> None:
        """Print the nodes' messages about their end, unless SLURM ends them all."""
        if self._allocation is not None and not self._stop_requested():
            for words in self._allocation.news():
                _say(words)

    def _due(self, heard_at: float) -> float:
        """Return when to stop the command; ``heard_at``: time when nodes reported SIGTERM."""
        if self._term_at is not None:  # SLURM also signals the command, or only this process
            return self._term_at + _SPREAD_S
        if self._notice_at is not None:  # signal sent to this process alone
            return self._notice_at
        return heard_at + _SPREAD_S

    def _requeued(self) -> int:
        """Requeue the job unless SLURM has removed it; return the exit status if that fails."""
        why = ""
        for attempt in range(_REQUEUE_TRIES):
            time.sleep(_PAUSE_S if attempt else 0.0)
            try:
                if not any(one.running and one.job == self._job for one in states(self._job)):
                    return _CUT
                if not self._spec.requeue:
                    _say("stopped before it was done; the job is not requeued")
                    return _CUT
                if not why:
                    _say("saved; the job is requeued and will resume")
                signal.signal(signal.SIGTERM, signal.SIG_IGN)  # sent by SLURM to end it
                called("scontrol", "requeue", self._job)
                time.sleep(_ENDED_S)
                return _CUT
            except LaunchFailed as error:
                why = str(error)
        _say(f"the job can't be requeued ({why}): run `scontrol requeue {self._job}`")
        return _CUT


def _own_name(job: str) -> str:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    return job if array is None else f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}"


def _expanded(pattern: str) -> str:
    """Expand %j, %A and %a in a name, as sbatch does."""
    values = {"%j": "SLURM_JOB_ID", "%A": "SLURM_ARRAY_JOB_ID", "%a": "SLURM_ARRAY_TASK_ID"}
    for name, variable in values.items():
        pattern = pattern.replace(name, os.environ.get(variable, ""))
    return pattern


def _say(text: str) -> None:
    print(f"headrace: {text}", flush=True)


def main() -> int:
    """Run the job spec in the batch script."""
    try:
        return BatchScriptHead(JobSpec.read(sys.stdin.read())).run()
    except HeadraceError as error:
        _say(str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())

"""Follows a SLURM job: queue, output and end."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from pathlib import Path

from headrace.errors import LaunchFailed
from headrace.jobs.slurm.queue import State, cancel, states
from headrace.rundir.countdown import Countdown

_LOOK_S = 1.0  # initial polling interval of SLURM
_SELDOM_S = 10.0  # later on
_TRIES = 5  # time to poll SLURM, whose server may be restarting


class LogTail:
    """Reads new lines of a growing file, without its previous content."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read = path.stat().st_size if path.exists() else 0

    def new(self) -> str:
        """Return whole lines added since the last call."""
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                text = file.read()
        except FileNotFoundError:
            return ""
        complete = text[: text.rfind(b"\n") + 1]
        self._read += len(complete)
        return complete.decode(errors="replace")


def log_of(pattern: str, state: str) -> Path:
    """Return sbatch's output file for a job, or an array job ("12_3")."""
    job, _, task = state.partition("_")
    return Path(pattern.replace("%j", job).replace("%A", job).replace("%a", task))


class JobFollower:
    """Reports a job's progress until it ends.

    Args:
        job: job number.
        pattern: sbatch's pattern of output files.
        before: sizes or contents of existing logs, by path.
        show: called with the job's output.
        say: called with status messages.
        num_jobs: number of jobs of an array.
    """

    def __init__(
        self,
        job: str,
        pattern: str,
        before: dict[Path, LogTail],
        show: Callable[[str], None],
        say: Callable[[str], None],
        num_jobs: int = 1,
    ) -> None:
        self._countdown, self._num_jobs = Countdown(num_jobs), num_jobs
        self._job, self._pattern, self._show, self._say = job, pattern, show, say
        self._logs, self._told = before, dict[str, str]()
        self._seen: set[str] = set()  # jobs that have printed something
        self._last: dict[str, State] = {}  # SLURM forgets array jobs one by one

    def to_the_end(self) -> int:
        """Follow until all jobs have ended; return the highest exit status."""
        pause_s = _LOOK_S
        while True:
            now = self._states()
            self._last |= {one.job: one for one in now}
            for one in now:
                self._report_status(one)
            for one in now:
                self._print(one)
            if all(one.ended for one in now):
                time.sleep(_LOOK_S)  # a preempted job disappears briefly before it is requeued
                if all(one.ended for one in self._states()):
                    break
            until = time.monotonic() + pause_s
            while time.monotonic() < until:
                time.sleep(0.2)
                for one in now:
                    self._print(one)
            pause_s = min(_SELDOM_S, pause_s * 1.2)
        ended = [one for one in self._last.values() if one.ended]
        for one in ended:
            self._print(one)
            if one.job not in self._seen and one.name != "CANCELLED":
                where = log_of(self._pattern, one.job).parent
                raise LaunchFailed(
                    f"job {one.job} has ended as {one.name} and printed nothing here: can its "
                    f"nodes write to {where}? Choose --run-dir on a file system that this machine "
                    "and all nodes share"
                )
        return max(one.exit_code or (0 if one.name == "COMPLETED" else 1) for one in ended)

    def _states(self) -> list[State]:
        for attempt in range(_TRIES):
            try:
                return states(self._job)
            except LaunchFailed as error:
                if attempt == _TRIES - 1:
                    raise LaunchFailed(
                        f"{error}; job {self._job} keeps running, and its output is in "
                        f"{self._pattern}"
                    ) from None
                time.sleep(_LOOK_S * 2**attempt)
        raise AssertionError

    def _print(self, one: State) -> None:
        path = log_of(self._pattern, one.job)
        if "[" in path.name:  # array jobs that wait together
            return
        text = self._logs.setdefault(path, LogTail(path)).new()
        if text:
            self._seen.add(one.job)
            self._show(text)

    def _report_status(self, one: State) -> None:
        status = {
            "PENDING": one.waits,
            "RUNNING": f"runs on {one.nodes}",
            "CONFIGURING": f"waits for {one.nodes} to boot",
        }.get(one.name, "")
        if one.restarts and status:
            status = f"{status}, start {one.restarts + 1}"
        if one.ended:
            status = f"has ended: {one.name.lower().replace('_', ' ')}"
        if status and self._told.get(one.job) != status:
            self._told[one.job] = status
            where = f"{self._progress()} " if one.ended and self._num_jobs > 1 else ""
            self._say(f"{where}job {one.job} {status}")

    def _progress(self) -> str:
        """Format how many jobs of an array have ended, and the time left."""
        return self._countdown.text(sum(one.ended for one in self._last.values()))


def cancelled(job: str, say: Callable[[str], None], timeout_s: float = 120.0) -> None:
    """Cancel a job and wait until none of its processes run."""
    say(f"cancelling job {job}")
    cancel(job)
    deadline = time.monotonic() + timeout_s
    with contextlib.suppress(LaunchFailed):  # SLURM has forgotten it
        while not all(one.ended for one in states(job)) and time.monotonic() < deadline:
            time.sleep(0.2)

"""Checks a trial of faults.py: processes, memory and files left behind, and step counts."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from chaos_env import FOLDER
from chaos_run import env_steps, last_result

MARK = "HEADRACE_FAULT_TRIAL"  # environment variable of all processes of a trial
INTERVAL = 5_000  # steps between checkpoints
IN_FLIGHT = 4 * 512  # steps of rollouts in flight and of the last update


class Fault(NamedTuple):
    """A fault and when it happens."""

    backend: str
    phase: str
    name: str
    file: str  # opened for writing; empty: the fault depends on time alone
    number: int  # which opening of the file, from 1
    late_s: float  # delay after that, or after the start
    what: str  # the process that gets a signal, or an action of fault_hooks
    value: Any


@dataclass
class Outcome:
    """Results of a trial."""

    happened: bool = False
    statuses: list[int | None] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)
    output: str = ""
    counts: list[int] = field(default_factory=list)  # steps of environments, by command


class Places(NamedTuple):
    """Folders of a trial: its run, temporary files, and counts of steps by command."""

    folder: Path

    @property
    def run(self) -> Path:
        return self.folder / "run"

    @property
    def temporary(self) -> Path:
        return self.folder / "temporary"

    def counts(self, command: int) -> Path:
        return self.folder / f"counts{command}"

    def environment(self, command: int) -> dict[str, str]:
        """Create the folders of a command, and return the variables that name them."""
        self.temporary.mkdir(exist_ok=True)
        self.counts(command).mkdir()
        return {FOLDER: str(self.counts(command)), "TMPDIR": str(self.temporary)}


def check_end(fault: Fault, status: int | None, outcome: Outcome) -> None:
    """Check the exit status and the messages of the command with the fault."""
    killed = fault.what == "command" and fault.value == signal.SIGKILL and outcome.happened
    said = [line for line in outcome.output.splitlines() if line.startswith("headrace: ")]
    stopped = "to continue: headrace resume" in outcome.output
    if status not in (None, 0) and not killed and fault.backend != "cluster_env":
        by_signal = status in (130, 129, 143, -2, -1, -15)
        if not said and not stopped and not (by_signal and fault.what in ("command", "group")):
            outcome.faults.append(f"exit status {status} without a message")


def check_left(
    outcome: Outcome, places: Places, mark: str, before: set[str], killed: bool = False
) -> None:
    """Check that no process, shared memory or temporary file is left, after a while.

    Args:
        killed: the command was killed, so it could not delete its temporary files.
    """
    end = time.monotonic() + 20.0
    while (left := family(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    for one in left:
        with contextlib.suppress(psutil.Error):
            outcome.faults.append(f"left process {one.name()}: {' '.join(one.cmdline())[:80]}")
            one.kill()
    if blocks := shared_memory() - before:
        outcome.faults.append(f"left shared memory {sorted(blocks)[:3]}")
    has_logs = f"{places.temporary}/ray/session_" in outcome.output  # a message names one
    if files := sorted(str(x.relative_to(places.folder)) for x in places.temporary.rglob("*")):
        if not killed and not has_logs:
            outcome.faults.append(f"left files {files[:3]}")
        for one in places.temporary.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()


def check_checkpoint(fault: Fault, status: int | None, outcome: Outcome, run: Path) -> None:
    """Check that the last checkpoint is not too old."""
    reached, kept = last_result(run), env_steps(run)
    allowed = INTERVAL + IN_FLIGHT
    if status == 0 and fault.what not in ("error", "full"):
        allowed = 0
    if outcome.happened and reached - kept > allowed:
        outcome.faults.append(f"{reached:,} steps were trained, the checkpoint has {kept:,}")


def check_steps(
    fault: Fault, status: int | None, outcome: Outcome, places: Places, number: int, began_at: int
) -> None:
    """Compare a command's steps with those that its environments counted.

    A run must not report more steps than were taken. If it ended by itself, it may lose the
    rollouts in flight and, if its learners restarted, the steps after their last checkpoint.
    """
    name = "MainProcess" if fault.backend == "serial" else "headrace-actor-"
    files = places.counts(number).glob(f"{name}*")
    taken = sum(int(np.fromfile(file, np.int64)[0]) for file in files)
    outcome.counts.append(taken)
    trained = last_result(places.run) - began_at
    if trained > taken:
        outcome.faults.append(f"{trained:,} steps are reported, {taken:,} were taken")
    is_exact = fault.backend != "serial"  # serial also counts steps of evaluations
    if is_exact and status == 0 and taken - trained > INTERVAL + 3 * IN_FLIGHT:
        outcome.faults.append(f"{trained:,} steps are reported of {taken:,} taken")


def check_files(outcome: Outcome, run: Path) -> None:
    """Check the files of a run that was resumed to its end."""
    steps = []
    for line in (run / "metrics.jsonl").read_text().splitlines():
        try:
            steps.append(json.loads(line)["env_steps"])
        except (ValueError, KeyError, TypeError):
            outcome.faults.append(f"metrics.jsonl has the line {line[:80]!r}")
    if not steps:
        outcome.faults.append("metrics.jsonl is empty")
    elif any(later <= earlier for earlier, later in itertools.pairwise(steps)):
        outcome.faults.append("env_steps of metrics.jsonl do not increase")
    if json.loads((run / "summary.json").read_text()).get("env_steps") != (steps or [None])[-1]:
        outcome.faults.append("summary.json and metrics.jsonl differ in env_steps")
    if kept := sorted(x.name for x in run.rglob("*") if "tmp" in x.name or x.name[0] == "."):
        outcome.faults.append(f"the run keeps {kept[:3]}")


def family(mark: str) -> list[psutil.Process]:
    """Return all live processes of a trial, including orphans."""
    entry, found = f"{MARK}={mark}".encode(), []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, psutil.Error):
            if entry in (folder / "environ").read_bytes().split(b"\0"):
                one = psutil.Process(int(folder.name))
                if one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
    return found


def shared_memory() -> set[str]:
    """Return the blocks of shared memory that headrace created, in all processes."""
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if "headrace" in name}
    return set()

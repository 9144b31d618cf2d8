"""Runs one trial of faults.py: a command with a fault, and the command that resumes its run."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from chaos_env import FOLDER
from chaos_run import env_steps, last_result

MARK = "HEADRACE_FAULT_TRIAL"  # environment variable of all processes of a trial
INTERVAL = 5_000  # steps between checkpoints
IN_FLIGHT = 4 * 512  # steps of rollouts in flight and of the last update
TOTAL = 40_000
_LIMIT_S = {"ray": 180.0}  # longer commands count as hanging
_STOPPED_S = 3.0  # after which a stopped process continues
FLAGS = {
    "env-id": "chaos_env:CountedCartPole", "engine": "sync", "num-actors": 2, "envs-per-actor": 8,
    "fragment-length": 32, "total-steps": TOTAL, "checkpoint-interval": INTERVAL,
    "eval-interval": 10_000, "eval-episodes": 2, "log-interval-s": 0.05, "actor-timeout-s": 20,
    "learner-timeout-s": 30,
}  # fmt: skip
BACKENDS = {
    "serial": {"transport": "serial"},
    "shm": {},
    "learners": {"num-learners": 2},
    "ray": {"cluster": "ray"},
}


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


def run_trial(fault: Fault, folder: Path, seed: int) -> Outcome:
    """Run a command with a fault, check what it leaves, and resume its run without one."""
    outcome, run, mark = Outcome(), folder / "run", f"{os.getpid()}-{seed}"
    before = _shared_memory()
    environment = _environment(folder, mark)
    hook = _hook(fault, folder / "happened")
    status = _watched(
        fault, _command(fault.backend, run), environment | hook, folder, outcome, seed
    )
    reached = last_result(run)
    _check_end(fault, status, outcome, mark, before)
    if fault.backend == "cluster_env":
        return outcome
    kept = env_steps(run)
    if outcome.happened and reached - kept > INTERVAL + IN_FLIGHT and status != 0:
        outcome.faults.append(f"{reached:,} steps were trained, the checkpoint has {kept:,}")
    again = ["resume", str(run)] if kept else [*_command(fault.backend, run), "--overwrite"]
    if kept:
        again = [*_program(), *again, f"--total-steps={TOTAL + 2_000}"]
    calm = fault._replace(file="", late_s=1e9)
    outcome.output += "\n--- again ---\n"
    status = _watched(calm, again, environment, folder, Outcome(), seed, outcome)
    if status != 0:
        outcome.faults.append(f"the run did not continue: exit status {status}")
    elif last_result(run) < TOTAL:
        outcome.faults.append(f"the run continued to {last_result(run):,} steps only")
    _check_left(outcome, mark, before)
    return outcome


def _program() -> list[str]:
    return [sys.executable, "-m", "headrace"]


def _command(backend: str, run: Path) -> list[str]:
    if backend == "cluster_env":
        return [sys.executable, str(Path(__file__).with_name("faults_cluster.py")), str(run)]
    flags = FLAGS | BACKENDS[backend]
    algorithm = "ppo" if backend == "serial" else "appo"
    words = [f"--{name}={value}" for name, value in flags.items()]
    return [*_program(), "train", algorithm, *words, f"--run-dir={run}"]


def _environment(folder: Path, mark: str) -> dict[str, str]:
    here = Path(__file__).parent
    counts = folder / "counts"
    counts.mkdir()
    paths = [str(here / "fault_hooks"), str(here), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        MARK: mark,
        FOLDER: str(counts),
        "COLUMNS": "200",
    }


def _hook(fault: Fault, happened: Path) -> dict[str, str]:
    """Return the variable that injects a fault, or marks the time to cause it from outside."""
    if not fault.file:
        return {}
    action, value = (fault.what, fault.value) if fault.what in _ACTIONS else ("mark", None)
    values = {"file": fault.file, "number": fault.number, "action": action, "value": value}
    return {"HEADRACE_FAULT": json.dumps(values | {"mark": str(happened)})}


_ACTIONS = ("error", "delay", "clock")


def _watched(
    fault: Fault,
    command: list[str],
    environment: dict[str, str],
    folder: Path,
    outcome: Outcome,
    seed: int,
    total: Outcome | None = None,
) -> int | None:
    """Run a command, cause faults from outside, and return its status; None if it hangs."""
    path, happened = folder / "output.txt", folder / "happened"
    begun, limit = time.monotonic(), _LIMIT_S.get(fault.backend, 120.0)
    due = begun + fault.late_s if not fault.file else None
    with path.open("wb") as log:
        process = subprocess.Popen(
            command, env=environment, stdout=log, stderr=log, cwd=folder, start_new_session=True
        )
    while process.poll() is None and time.monotonic() < begun + limit:
        time.sleep(0.02)
        if due is None and happened.exists():
            due = time.monotonic() + fault.late_s
        if due is not None and not outcome.happened and time.monotonic() >= due:
            outcome.happened = True
            _cause(fault, process, environment[MARK], seed)
    outcome.happened |= happened.exists()
    status = process.poll()
    if status is None:
        for one in family(environment[MARK]):
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()
        (total or outcome).faults.append(f"hangs: over {limit:.0f} s")
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    shown = total or outcome
    shown.output += text
    shown.statuses.append(status)
    if "Traceback (most recent" in text and not _is_own(fault, text):
        shown.faults.append("prints a traceback")
    return status


def _is_own(fault: Fault, text: str) -> bool:
    """Return True for a traceback of the user's script that ends with an error of headrace."""
    last = text.strip().splitlines()[-1]
    return fault.backend == "cluster_env" and re.match(r"(headrace\.|Keyboard)", last) is not None


def _cause(fault: Fault, process: subprocess.Popen, mark: str, seed: int) -> None:
    """Send the fault's signal; stopped processes continue after some seconds."""
    if fault.what in _ACTIONS or process.poll() is not None:
        return
    command = psutil.Process(process.pid)
    others = [one for one in family(mark) if one.pid != process.pid]
    if fault.what == "group":
        os.killpg(process.pid, fault.value)
        return
    chosen = command
    if fault.what == "child":
        if not others:
            return
        chosen = random.Random(seed).choice(sorted(others, key=lambda one: one.pid))
    with contextlib.suppress(psutil.Error):
        chosen.send_signal(fault.value)
        if fault.value == signal.SIGSTOP and fault.what == "command":
            time.sleep(_STOPPED_S)
            chosen.send_signal(signal.SIGCONT)


def _check_end(
    fault: Fault, status: int | None, outcome: Outcome, mark: str, before: set[str]
) -> None:
    """Check the exit status, the messages, and that nothing is left behind."""
    killed = fault.what == "command" and fault.value == signal.SIGKILL and outcome.happened
    said = [line for line in outcome.output.splitlines() if line.startswith("headrace: ")]
    stopped = "to continue: headrace resume" in outcome.output
    if status not in (None, 0) and not killed and fault.backend != "cluster_env":
        by_signal = status in (130, 129, 143, -2, -1, -15)
        if not said and not stopped and not (by_signal and fault.what in ("command", "group")):
            outcome.faults.append(f"exit status {status} without a message")
    _check_left(outcome, mark, before)


def _check_left(outcome: Outcome, mark: str, before: set[str]) -> None:
    """Check that no process and no shared memory is left, after a while."""
    end = time.monotonic() + 20.0
    while (left := family(mark)) and time.monotonic() < end:
        time.sleep(0.2)
    for one in left:
        with contextlib.suppress(psutil.Error):
            outcome.faults.append(f"left process {one.name()}: {' '.join(one.cmdline())[:80]}")
            one.kill()
    if blocks := _shared_memory() - before:
        outcome.faults.append(f"left shared memory {sorted(blocks)[:3]}")


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


def _shared_memory() -> set[str]:
    """Return the blocks of shared memory that headrace created, in all processes."""
    with contextlib.suppress(OSError):
        return {name for name in os.listdir("/dev/shm") if "headrace" in name}
    return set()

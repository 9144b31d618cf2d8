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
import threading
import time
from pathlib import Path
from typing import IO

import psutil
from chaos_run import env_steps, last_result
from faults_checks import (
    INTERVAL,
    MARK,
    Fault,
    Outcome,
    Places,
    check_checkpoint,
    check_end,
    check_files,
    check_left,
    check_steps,
    family,
    shared_memory,
)

TOTAL = 40_000
_LIMIT_S = 240.0  # longer commands count as hanging
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
    "ray_learners": {"cluster": "ray", "num-learners": 2},
}


def run_trial(fault: Fault, folder: Path, seed: int) -> Outcome:
    """Run a command with a fault, check what it leaves, and resume its run without one."""
    outcome, places, mark = Outcome(), Places(folder), f"{os.getpid()}-{seed}"
    before, run = shared_memory(), places.run
    environment = _environment(mark) | places.environment(0) | _hook(fault, folder / "happened")
    status = _watched(fault, _command(fault.backend, run), environment, folder, outcome, seed)
    check_end(fault, status, outcome)
    killed = (fault.what, fault.value) == ("command", signal.SIGKILL)
    check_left(outcome, places, mark, before, killed)
    if fault.backend == "cluster_env":
        return outcome
    check_checkpoint(fault, status, outcome, run)
    check_steps(fault, status, outcome, places, 0, began_at=0)
    kept = env_steps(run)
    again = [*_command(fault.backend, run), "--overwrite"]
    if kept:
        again = [*_program(), "resume", str(run), f"--total-steps={TOTAL + 2_000}"]
    calm = fault._replace(name="", file="", late_s=1e9, what="")
    outcome.output += "\n--- again ---\n"
    environment = _environment(mark) | places.environment(1)
    status = _watched(calm, again, environment, folder, Outcome(), seed, outcome)
    if status != 0:
        outcome.faults.append(f"the run did not continue: exit status {status}")
    elif last_result(run) < TOTAL:
        outcome.faults.append(f"the run continued to {last_result(run):,} steps only")
    else:
        check_files(outcome, run)
    check_steps(calm, status, outcome, places, 1, began_at=kept)
    check_left(outcome, places, mark, before)
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


def _environment(mark: str) -> dict[str, str]:
    here = Path(__file__).parent
    paths = [str(here / "fault_hooks"), str(here), os.environ.get("PYTHONPATH", "")]
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTHONUNBUFFERED": "1",
        MARK: mark,
        "COLUMNS": "200",
    }


def _hook(fault: Fault, happened: Path) -> dict[str, str]:
    """Return the variable that injects a fault, or marks the time to cause it from outside."""
    if not fault.file:
        return {}
    action, value = (fault.what, fault.value) if fault.what in _ACTIONS else ("mark", None)
    values = {"file": fault.file, "number": fault.number, "action": action, "value": value}
    return {"HEADRACE_FAULT": json.dumps(values | {"mark": str(happened)})}


_ACTIONS = ("error", "full", "delay", "clock")


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
    begun = time.monotonic()
    due = begun + fault.late_s if not fault.file else None
    process = subprocess.Popen(
        command, env=environment, cwd=folder, start_new_session=True, bufsize=0,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    reader = threading.Thread(target=_copy, args=(process.stdout, path), daemon=True)
    reader.start()
    while process.poll() is None and time.monotonic() < begun + _LIMIT_S:
        time.sleep(0.02)
        if due is None and happened.exists():
            due = time.monotonic() + fault.late_s
        if due is not None and time.monotonic() >= due:
            due = float("inf")
            outcome.happened |= _cause(fault, process, environment[MARK], seed)
    outcome.happened |= fault.what in _ACTIONS and happened.exists()
    status = process.poll()
    if status is None:
        for one in family(environment[MARK]):
            with contextlib.suppress(psutil.Error):
                one.kill()
        process.wait()
        (total or outcome).faults.append(f"hangs: over {_LIMIT_S:.0f} s")
    reader.join(timeout=1.0)  # a process that is left may keep the pipe open
    text = path.read_bytes().decode("utf-8", "backslashreplace")
    shown = total or outcome
    shown.output += text
    shown.statuses.append(status)
    if "Traceback (most recent" in text and not _is_own(fault, text):
        shown.faults.append("prints a traceback")
    return status


def _copy(pipe: IO[bytes], path: Path) -> None:
    """Copy a command's output to a file, since its own writes may fail."""
    with pipe, path.open("wb", buffering=0) as file:
        while data := pipe.read(1 << 16):
            file.write(data)


def _is_own(fault: Fault, text: str) -> bool:
    """Return True for a traceback of the user's script that ends with an error of headrace."""
    last = text.strip().splitlines()[-1]
    return fault.backend == "cluster_env" and re.match(r"(headrace\.|Keyboard)", last) is not None


def _cause(fault: Fault, process: subprocess.Popen, mark: str, seed: int) -> bool:
    """Send the fault's signal; return whether there was a process for it.

    A stopped command continues after some seconds.
    """
    if fault.what in _ACTIONS or process.poll() is not None:
        return False
    if fault.what == "group":
        os.killpg(process.pid, fault.value)
        return True
    chosen = psutil.Process(process.pid)
    if fault.what == "child":
        others = [one for one in family(mark) if one.pid != process.pid]
        if not others:
            return False
        chosen = random.Random(seed).choice(sorted(others, key=lambda one: one.pid))
    try:
        chosen.send_signal(fault.value)
    except psutil.Error:
        return False
    if fault.value == signal.SIGSTOP and fault.what == "command":
        time.sleep(_STOPPED_S)
        with contextlib.suppress(psutil.Error):
            chosen.send_signal(signal.SIGCONT)
    return True

"""Runs functions in forked processes with a time limit, for fuzz_configs.py and fuzz_runs.py."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from typing import NamedTuple

_MOST_GB = 2.0
CRASHED = 99  # exit status of a function that raised an unexpected error

# Modules that runs import lazily, which takes half of a short run's time
_OF_RUNS = ("headrace.launch.local", "headrace.trainer.trainer", "headrace.reporting.page",
            "headrace.rundir.plot", "headrace.rundir.terminal", "matplotlib.figure",
            "matplotlib.backends.backend_agg", "tensorboard.compat.proto.event_pb2",
            "headrace.learner.native", "headrace.recipes")  # fmt: skip


def import_early() -> None:
    """Import the modules of runs once, for all functions that are called in forked processes."""
    for name in _OF_RUNS:
        importlib.import_module(name)


class Ended(NamedTuple):
    """Exit status and output of a trial."""

    status: int | None  # None: it took too long
    output: str
    peak_gb: float = 0.0  # peak memory in GB

    @property
    def problem(self) -> str | None:
        """Return the problem; None if the trial succeeded or failed with a message."""
        if self.status is None:
            return "hangs"
        if self.status < 0:
            return f"killed by signal {-self.status}"
        if self.status == CRASHED or "Traceback (most recent" in self.output:
            return "prints a traceback"
        if self.peak_gb > _MOST_GB:
            return f"uses more than {_MOST_GB:g} GB of memory"
        lines = self.output.strip().splitlines()
        if self.status != 0 and not (
            lines and any(x.startswith("headrace: ") or "For full helptext" in x for x in lines)
        ):
            return f"exit status {self.status} without a message"
        return None


def ended(function: Callable[[], int], limit_s: float) -> Ended:
    """Call a function in a forked process, in its own session."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            _child(function, file.fileno())
        end, status, usage = time.monotonic() + limit_s, None, None
        while status is None and time.monotonic() < end:
            done, code, usage = os.wait4(pid, os.WNOHANG)
            status = os.waitstatus_to_exitcode(code) if done else None
            time.sleep(0.01)
        if status is None:
            with contextlib.suppress(ProcessLookupError):  # it has no session yet
                os.killpg(pid, signal.SIGKILL)
            os.kill(pid, signal.SIGKILL)
            _, _, usage = os.wait4(pid, 0)
        file.seek(0)
        text = file.read(1 << 20).decode("utf-8", "backslashreplace")
        return Ended(status, text, usage.ru_maxrss * 1024 / 1e9 if usage else 0.0)


def _child(function: Callable[[], int], output: int) -> None:
    status = CRASHED
    try:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdin = open(os.devnull)  # noqa: SIM115
        sys.stdout = open(1, "w", closefd=False, buffering=1)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False, buffering=1)  # noqa: SIM115
        status = function()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(bool(error.code))
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)

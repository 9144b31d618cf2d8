"""Runs cases in forks of one process, so that torch and the page are imported once."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from book.experiment import Case, Experiment
from book.training import trained
from headrace.rundir.atomic_files import replace_text

_ERROR_CHARACTERS = 300
_LOOK_S = 0.02  # polling interval


def run_cases(request: dict[str, Any]) -> None:
    """Run the cases that no other process has begun, each in a fork of this process.

    Args:
        request: ``page``, ``experiment``, ``cases``, and ``folder`` for the results: file
            ``N.json`` holds ``seconds``, and ``values`` or ``error``, of case N.
    """
    page = importlib.import_module(f"book.{request['page']}").PAGE
    experiment: Experiment = next(e for e in page.experiments if e.name == request["experiment"])
    folder = Path(request["folder"])
    for number, case in enumerate(request["cases"]):
        with contextlib.suppress(FileExistsError):
            (folder / f"{number}.begun").touch(exist_ok=False)
            begin, values = time.monotonic(), folder / f"{number}.values"
            result = forked(lambda: measured(experiment, case), values, experiment.limit_s)  # noqa: B023
            result["seconds"] = time.monotonic() - begin
            replace_text(folder / f"{number}.json", json.dumps(result))


def measured(experiment: Experiment, case: Case) -> dict[str, Any]:
    """Measure one case in this process."""
    if experiment.measure is not None:
        return experiment.measure(case)
    return trained(experiment.settings(case))


def forked(function: Callable[[], dict[str, Any]], path: Path, limit_s: float) -> dict[str, Any]:
    """Call a function in a fork of this process. Return its result as ``values``, or an ``error``.

    Args:
        path: temporary file for the result, as JSON.
        limit_s: seconds after which the fork and its children are killed.
    """
    sys.stdout.flush()
    pid = os.fork()
    if not pid:
        _call(function, path)
    process, end = psutil.Process(pid), time.monotonic() + limit_s
    ended, status = 0, 0
    while not ended and time.monotonic() < end:
        time.sleep(_LOOK_S)
        ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.Error):
                one.kill()
        os.waitpid(pid, 0)
        return {"error": f"it took longer than {limit_s:.0f} s"}
    if not path.exists():
        return {"error": f"its process ended with code {os.waitstatus_to_exitcode(status)}"}
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _call(function: Callable[[], dict[str, Any]], path: Path) -> None:
    """Write the result of a function, and end this process."""
    code = 1
    try:
        try:
            result: dict[str, Any] = {"values": function()}
        except Exception as error:
            traceback.print_exc()
            result = {"error": f"{type(error).__name__}: {str(error)[-_ERROR_CHARACTERS:]}"}
        path.write_text(json.dumps(result), encoding="utf-8")
        atexit._run_exitfuncs()
        code = 0
    finally:
        os._exit(code)

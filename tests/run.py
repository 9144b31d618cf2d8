"""Runs the whole test suite: ``python -m tests.run [--clusters] [--full] [arguments of pytest]``.

Workers share the files, the longest first. Then the tests marked ``serial`` run alone. The closing
lines cover both, with the seconds of each file and its budget. On one core everything runs in turn,
except tests of clusters, which wait most of the time. With ``--clusters`` only tests that start a
cluster run, and none may be skipped. If a worker crashes, the run stops and names the test. All
bytecode is cached: otherwise each worker would rewrite all assertions, and each process would
compile the package.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import pytest

from tests import budget
from tests.tries import FULL

TESTS = Path(__file__).parent
NUM_CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
NUM_WORKERS = 1 if NUM_CORES == 1 else 3  # more workers than cores, as tests wait at times
REQUIRED = {"HEADRACE_CLUSTER_TESTS": "required"}


def main(arguments: list[str]) -> int:
    """Run the suite. Return 0 if all tests passed."""
    full, clusters = "--full" in arguments, "--clusters" in arguments
    others = [one for one in arguments if one not in ("--full", "--clusters")]
    runs = cluster_runs(full) if clusters else whole_runs(full, others)
    more = (REQUIRED if clusters else {}) | ({FULL: "1"} if full else {})
    seconds: Counter[str] = Counter()
    endings, begun = {}, time.monotonic()
    for name, settings in runs.items():
        print(f"== {name}", flush=True)
        endings[name] = _run([*settings, *others], seconds, more)
    print("== seconds by file", budget.table(seconds), sep="\n")
    print(f"== {time.monotonic() - begun:.0f} s of wall clock")
    good = pytest.ExitCode.OK, *([] if clusters else [pytest.ExitCode.NO_TESTS_COLLECTED])
    for name, code in endings.items():
        print(f"{'passed' if code in good else f'FAILED (exit code {code})'}: {name}")
    return next((code for code in endings.values() if code not in good), 0)


def whole_runs(full: bool, others: list[str]) -> dict[str, list[str]]:
    """Return pytest arguments for each part of the suite that every machine can run."""
    others_are = "not cluster and not browser and not integrations"  # these need special machines
    which = others_are if full else f"not full and not slow and {others_are} and not ray"
    with_serial = [
        str(path) for path in sorted(TESTS.rglob("test_*.py")) if "mark.serial" in path.read_text()
    ]
    if any(Path(argument.partition("::")[0]).exists() for argument in others):
        with_serial = []  # only the named files
    if NUM_WORKERS == 1:
        return {"one at a time": ["-m", which]}
    return side_by_side(f"{which} and not serial", NUM_WORKERS) | {
        "serial": ["-m", f"{which} and serial", *with_serial]
    }


def cluster_runs(full: bool) -> dict[str, list[str]]:
    """Return pytest arguments for tests of clusters, with the same workers on any machine."""
    return side_by_side("cluster or ray" if full else "(cluster or ray) and not full", 3)


def side_by_side(which: str, num_workers: int) -> dict[str, list[str]]:
    """Return pytest arguments for workers, with files in the order of their budgets."""
    by_workers = ["-n", str(num_workers), "--dist", "loadfile", "--no-loadscope-reorder"]
    by_workers += ["--max-worker-restart=0"]  # a crash stops the run
    return {f"{num_workers} workers": [*by_workers, "-m", which]}


def _run(arguments: list[str], seconds: Counter[str], more: dict[str, str]) -> int:
    """Run pytest with more environment variables, and add the seconds of its files."""
    kept = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=TESTS.parent,
            env=kept | {budget.COLLECTED: str(path)} | more,
            check=False,
        ).returncode
        if path.exists():
            seconds.update(json.loads(path.read_text()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

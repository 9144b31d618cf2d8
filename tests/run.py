"""Runs the whole suite: ``python -m tests.run [--full] [arguments of pytest]``.

Two workers take the files between them, the longest first; then the tests marked ``serial`` run
alone. The closing lines are those of both, and the seconds of each file beside its budget. On one
core everything runs in turn. Bytecode is kept in any case: without it each worker would rewrite all
assertions, and each process compile all of the package.
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
NUM_WORKERS = min(2, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2)
PARALLEL = ["-n", str(NUM_WORKERS), "--dist", "loadfile", "--no-loadscope-reorder"]


def main(arguments: list[str]) -> int:
    """Run all of it; the exit status is 0 where every test passed."""
    full = "--full" in arguments
    others = [argument for argument in arguments if argument != "--full"]
    others_are = "not cluster and not browser and not integrations"  # which not all machines can
    which = others_are if full else f"not full and not slow and {others_are} and not ray"
    with_serial = [
        str(path) for path in sorted(TESTS.rglob("test_*.py")) if "mark.serial" in path.read_text()
    ]
    if any(Path(argument.partition("::")[0]).exists() for argument in others):
        with_serial = []  # only what was named
    runs = {"one at a time": ["-m", which]}
    if NUM_WORKERS > 1:
        runs = {
            f"{NUM_WORKERS} workers": [*PARALLEL, "-m", f"{which} and not serial"],
            "serial": ["-m", f"{which} and serial", *with_serial],
        }
    seconds: Counter[str] = Counter()
    endings, begun = {}, time.monotonic()
    for name, settings in runs.items():
        print(f"== {name}", flush=True)
        endings[name] = _run([*settings, *others], seconds, full)
    print("== seconds by file", budget.table(seconds), sep="\n")
    print(f"== {time.monotonic() - begun:.0f} s of wall clock")
    good = pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED
    for name, code in endings.items():
        print(f"{'passed' if code in good else f'FAILED (exit code {code})'}: {name}")
    return next((code for code in endings.values() if code not in good), 0)


def _run(arguments: list[str], seconds: Counter[str], full: bool) -> int:
    """Run pytest; adds the seconds of its files."""
    kept = {name: x for name, x in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "seconds.json"
        code = subprocess.run(
            [sys.executable, "-m", "pytest", *arguments],
            cwd=TESTS.parent,
            env=kept | {budget.COLLECTED: str(path)} | ({FULL: "1"} if full else {}),
            check=False,
        ).returncode
        if path.exists():
            seconds.update(json.loads(path.read_text()))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Sweep with instant runs: ``python stub.py OUTPUT [SETTINGS as JSON]``."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from headrace.studies.machine import wide_console
from headrace.studies.sweep import report
from headrace.studies.sweep.command import run
from headrace.studies.sweep.settings import Sweep

SAMPLE = ("learning_rate=loguniform:1e-5,1e-2", "entropy_coef=uniform:0,0.1")


def measure(sweep, claim, repeat, children):
    """Return a made-up score, and print a line at the start and end of the run."""
    told = {"trial": claim.number, "repeat": repeat, "values": claim.values, "pid": os.getpid()}
    with (Path(sweep.output) / "log.jsonl").open("a", buffering=1) as file:
        file.write(json.dumps({"begins": True, **told}) + "\n")
        time.sleep(0.02)
        file.write(json.dumps({"begins": False, **told}) + "\n")
    return {"score": claim.values["learning_rate"] + repeat}


if __name__ == "__main__":
    settings = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    sweep = Sweep(sample=SAMPLE, output=sys.argv[1], **settings)
    report.statistics.are_there = lambda: False  # rliable takes seconds to import
    sys.exit(run(sweep, wide_console(), measure))

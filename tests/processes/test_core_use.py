"""Core use is split into this process tree, other programs and idle time."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import psutil
import pytest

from headrace.processes import core_use
from headrace.processes.core_use import CoreMeter, CoreUse

SPIN = "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass"


class Times(SimpleNamespace):
    """CPU times of one core in seconds, as psutil returns them."""

    def __iter__(self):
        return iter(vars(self).values())


def cores(*each: tuple[float, float, float]) -> list[Times]:
    return [Times(user=u, guest=g, idle=i, iowait=0.0) for u, g, i in each]


def test_the_use_is_that_of_the_time_between_two_calls(monkeypatch):
    state = {"now": 10.0, "own": 3.0, "process": 1.0}
    state |= {"cores": cores((5.0, 1.0, 5.0), (2.0, 0.0, 8.0), (0, 0, 9))}
    monkeypatch.setattr(core_use, "cores", lambda: {0, 1})  # another program's core is number 2
    monkeypatch.setattr(core_use, "_own_seconds", lambda: state["own"])
    monkeypatch.setattr(core_use, "_process_seconds", lambda: state["process"])
    monkeypatch.setattr(core_use.time, "monotonic", lambda: state["now"])
    monkeypatch.setattr(psutil, "cpu_times", lambda percpu: state["cores"])
    meter = CoreMeter()
    assert meter.measure() is None  # no time has passed
    state |= {"now": 12.0, "own": 4.0, "process": 1.5}
    state |= {"cores": cores((7.0, 2.0, 5.0), (3.0, 0.0, 9.0), (2, 0, 9))}
    assert meter.measure() == CoreUse(own=0.5, other=1.0, idle=0.5, process=0.25)
    state |= {"now": 14.0, "own": 1.0}  # a descendant was killed
    assert meter.measure() == CoreUse(own=0.0, other=0.0, idle=0.0, process=0.0)


def test_systems_that_report_nothing_have_no_use(monkeypatch):
    def missing(percpu):
        raise NotImplementedError

    monkeypatch.setattr(psutil, "cpu_times", missing)
    assert CoreMeter().measure() is None


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs Linux")
def test_children_count_as_own_while_they_run_and_after_they_ended():
    before = core_use._own_seconds()
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert core_use._own_seconds() - before >= 0.18

"""Timeouts count only the time during which this process was not stopped."""

from __future__ import annotations

import os

import pytest

from headrace.processes import running_clock
from headrace.processes.running_clock import RunningClock, running_s
from headrace.transport.slab import Slab, spec_of
from headrace.transport.slots import Slots


@pytest.fixture
def now(monkeypatch):
    """Return a list whose element is the time that clocks return."""
    time = [100.0]
    monkeypatch.setattr(running_clock.time, "monotonic", lambda: time[0])
    return time


def test_time_in_which_the_process_was_stopped_does_not_count(now):
    clock = RunningClock()
    for now[0] in (100.5, 101.5, 701.5, 702.0):  # stopped for ten minutes
        ran_s = clock.now()
    assert ran_s == 0.5 + 1.0 + 2.0 + 0.5


def test_the_clock_runs_by_itself_and_in_forks():
    start = running_s()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if running_s() >= 0.0 else 1)
    assert os.waitpid(pid, 0)[1] == 0
    assert running_s() > start


def test_actors_are_not_silent_while_the_learner_was_stopped(now, monkeypatch):
    clock = RunningClock()
    monkeypatch.setattr("headrace.transport.slots.running_s", clock.now)
    slots = Slots(Slab(spec_of({}), 1, 8), 1, 1, ordered=False)
    assert slots.grant() == 0
    now[0] += 3600.0
    assert slots.silent_s(0) <= 2.0
    for _ in range(10):
        now[0] += 1.0
        clock.now()
    assert slots.silent_s(0) >= 10.0

"""Priorities on busy cores: actors yield to their learner."""

from __future__ import annotations

import os
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path

import psutil
import pytest
from patience import PATIENCE_S

from headrace.processes import Child, cores, pinned, process_tree

SECONDS = 0.3  # of a processor


def spin(pipe: Connection) -> None:
    """Compute until killed, after a message."""
    pipe.send(os.getsid(0))
    while True:
        pass


def own_seconds(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    times = psutil.Process(pid).cpu_times()
    return times.user + times.system


@pytest.mark.serial
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="it can't be held on one core")
@pytest.mark.parametrize("nice", [True, False])
def test_a_nice_child_leaves_its_core_to_who_started_it(nice):
    child = Child("spinning", spin, nice=nice)
    try:
        assert child.pipe.recv() == child.pid != os.getsid(0)
        _until_told(child.pid, 10 * nice)
        with pinned(1, 0):
            os.sched_setaffinity(child.pid, cores())
            mine, theirs = time.process_time(), own_seconds(child.pid)
            while time.process_time() < mine + SECONDS:
                pass
            share = (own_seconds(child.pid) - theirs) / (time.process_time() - mine)
    finally:
        child.kill()
    assert share < 0.5 if nice else share > 0.5


def _until_told(pid: int, nicer: int) -> None:
    """The kernel accepts a limited rate from ten sessions, including those of other tests."""
    group, deadline = Path(f"/proc/{pid}/autogroup"), time.monotonic() + PATIENCE_S
    while group.exists() and (told := group.read_text().strip()):
        if told.endswith(f"nice {nicer}"):
            return
        assert time.monotonic() < deadline, told
        time.sleep(0.02)


def test_who_is_started_by_a_nice_child_is_as_nice(monkeypatch):
    told: list[int] = []
    monkeypatch.setattr(process_tree, "_make_session_nicer", told.append)
    monkeypatch.setattr(os, "setsid", lambda: None)
    monkeypatch.setattr(os, "nice", lambda _: None)
    for name in (process_tree.MARK, process_tree.NICER):
        monkeypatch.setenv(name, "0")
    for nicer in (0, 10, 0, 10):
        process_tree.begin_session("0", nicer)
    assert told == [0, 10, 10, 19]


class Busy:
    """Replaces the kernel's file, which can be written now and then."""

    def __init__(self, refusals: int, error: type[OSError] = BlockingIOError) -> None:
        self.refusals, self.error, self.written = refusals, error, list[str]()

    def exists(self) -> bool:
        """Return True."""
        return True

    def write_text(self, text: str) -> None:
        """Reject a write, or write."""
        self.refusals -= 1
        if self.refusals >= 0:
            raise self.error
        self.written.append(text)


@pytest.fixture
def asked(monkeypatch):
    """Makes a session nicer by 10 with such a file; returns whether a thread was started."""

    def ask(file: Busy) -> bool:
        monkeypatch.setattr(process_tree, "_GROUP", file)
        before = set(threading.enumerate())
        process_tree._make_session_nicer(10)
        started = [x for x in set(threading.enumerate()) - before if x.name == process_tree._NICE]
        for thread in started:
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
        return bool(started)

    return ask


@pytest.mark.parametrize("refusals", [0, 3])
def test_a_kernel_that_takes_so_many_in_a_second_is_asked_again(refusals, asked):
    file = Busy(refusals)
    assert asked(file) == (refusals > 0)
    assert file.written == ["10"]


def test_where_it_may_not_be_set_nobody_goes_on_asking(asked):
    file = Busy(2, PermissionError)
    assert not asked(file)
    assert file.refusals == 1
    assert not file.written


def test_nobody_asks_for_ever(asked, monkeypatch):
    monkeypatch.setattr(process_tree, "_NICE_S", 0.2)
    file = Busy(10**6)
    assert asked(file)
    assert not file.written

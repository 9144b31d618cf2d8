"""Fixtures of tests with several processes."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
import time
from collections.abc import Callable

import psutil
import pytest
from patience import PATIENCE_S

import headrace as hr
from headrace.actors.fleet import start_fork_server
from tests.launch.ranks import Crew


@pytest.fixture
def crew():
    """Starts a Crew, and stops it after the test."""
    crews = []

    def start(ranks, work) -> Crew:
        crews.append(Crew(ranks, work))
        return crews[-1]

    yield start
    for one in crews:
        one.end()


@pytest.fixture
def watch():
    """Iterates over a LearnerGroup; returns it, its results, and its messages except the doctor's.

    ``act(group, result)`` is called with every result; ``said`` gets the messages of a failed run.
    """

    def run(config, act=lambda group, result: None, said=None):
        said = [] if said is None else said
        results = []
        with hr.LearnerGroup(config, notify=said.append) as group:
            for result in group:
                results.append(result)
                act(group, result)
        return group, results, [line for line in said if not line.startswith("doctor: ")]

    return run


@pytest.fixture
def leftovers(monkeypatch):
    """Returns files that stay in the temporary folder, including shared memory.

    Folders of other runs on this machine are ignored.
    """
    start_fork_server()  # its socket is to outlive the test
    folder = tempfile.mkdtemp(prefix="hr")
    monkeypatch.setenv("TMPDIR", folder)  # for scripts
    monkeypatch.setattr(tempfile, "tempdir", folder)

    def ours() -> set[str]:
        return {name for name in os.listdir(folder) if name.startswith("headrace-")}

    before = ours()
    yield lambda: wait_until_empty(lambda: ours() - before)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def nobody():
    """Returns the processes of the fork server that don't end."""

    def running() -> list[psutil.Process]:
        servers = psutil.Process().children()
        return [
            p
            for server in servers
            for p in server.children(recursive=True)
            if p.status() != psutil.STATUS_ZOMBIE
        ]

    return lambda: wait_until_empty(running)


@pytest.fixture
def free_port():
    """Returns a port that was free a moment ago."""

    def find() -> int:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            return probe.getsockname()[1]

    return find


def wait_until_empty(find: Callable, timeout_s: float = PATIENCE_S):
    """Return what ``find`` returns, as soon as it is empty or at the end of the wait."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            found = find()
        except psutil.NoSuchProcess:  # it ended meanwhile
            continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)

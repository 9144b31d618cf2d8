"""Descriptions of processes on a Ray cluster, and reasons for failed connections."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor, wait

import cloudpickle
import pytest
from patience import PATIENCE_S

from headrace.ray.auth import connection_error
from headrace.ray.process import Home, cause_of, process_class

KIND = process_class("HeadraceActor", "headrace.ray.actor:RemoteActor")
HOMES = """
import json, pickle, sys
home = pickle.load(sys.stdin.buffer)().home()
print(json.dumps([home, [name for name in ("headrace", "torch") if name in sys.modules]]))
"""


def test_where_a_process_is_is_known_before_it_has_imported_headrace():
    packed = cloudpickle.dumps(KIND)
    done = subprocess.run(
        [sys.executable, "-c", HOMES], input=packed, capture_output=True, check=True
    )
    fields, imported = json.loads(done.stdout)
    assert imported == []
    home = Home(*fields)
    assert home.node == socket.gethostname()
    assert home.pid != os.getpid()
    assert str(home) == f"node {home.node}, process {home.pid}, log {home.log}"


def test_a_node_without_headrace_is_told(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^headrace is not installed on .*: install it on"
    ):
        KIND().home()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("No.\nTraceback\n\n  ERROR: none  found\n", "No. … ERROR: none found"),
        ("dead\nThe actor died because of x.\nmore", "The actor died because of x."),
        ("one line", "one line"),
        ("", ""),
    ],
)
def test_of_what_ray_says_what_and_why_are_kept(text, told):
    assert cause_of(ValueError(text)) == f"ValueError: {told}"


class AuthenticationError(Exception):
    """Mimics an exception of Ray."""


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            ConnectionRefusedError(111, "refused"),
            "nothing answers at 'x': start it with `ray start",
        ),
        (
            RuntimeError("Version mismatch: The\ncluster"),
            "the cluster at 'x' has other versions: in",
        ),
        (
            ConnectionError("Failed to connect to Ray"),
            "the cluster at 'x' rejected this program",
        ),
        (
            AuthenticationError("no token"),
            "the cluster at 'x' rejected this program: set RAY",
        ),
        (ValueError("?"), "could not connect to the cluster at 'x' (?)"),
    ],
)
def test_why_a_program_does_not_get_in_is_told_with_what_to_do(error, words):
    told = connection_error(error, "at 'x'", False)
    assert told.startswith(words)
    assert told.endswith(f"({' '.join(str(error).split())})")
    assert connection_error(error, "on this machine", True).startswith(
        "could not start a cluster on this"
    )


class Thing:
    """Runs in a process and records its calls, unless it has a problem."""

    def __init__(self, problem: str | None) -> None:
        self.problem = problem

    def double(self, number: int) -> int:
        return 2 * number


def test_calls_wait_for_the_object_of_a_process():
    process = process_class("Things", f"{__name__}:Thing")()
    with ThreadPoolExecutor() as pool:
        called = pool.submit(process.call, "double", 3)
        assert not wait([called], 0.1).done
        assert process.begin(None) is None
        assert called.result(PATIENCE_S) == 6


def test_an_object_with_a_problem_is_not_called():
    process = process_class("Things", f"{__name__}:Thing")()
    assert process.begin("no licence") == "no licence"
    assert process.call("double", 3) is None


def test_a_process_whose_object_cannot_be_created_fails_each_call():
    process = process_class("Things", "headrace.ray.nowhere:Thing")()
    with pytest.raises(ModuleNotFoundError):
        process.begin()
    with pytest.raises(ModuleNotFoundError, match=r"headrace\.ray\.nowhere"):
        process.call("double", 3)

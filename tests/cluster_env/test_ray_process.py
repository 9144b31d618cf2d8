"""What processes on a Ray cluster say of themselves, and why a program doesn't get into one."""

from __future__ import annotations

import importlib.util
import json
import os
import socket
import subprocess
import sys

import cloudpickle
import pytest

from headrace.ray.actor import actor_class
from headrace.ray.cluster_env import worker_class
from headrace.ray.learners import learner_class
from headrace.ray.auth import connection_error
from headrace.ray.process import Home, cause_of

CLASSES = [actor_class, worker_class, learner_class]
HOMES = """
import json, pickle, sys
classes = pickle.load(sys.stdin.buffer)
homes = [kind().home() for kind in classes]
print(json.dumps([homes, [name for name in ("headrace", "torch") if name in sys.modules]]))
"""


def test_where_a_process_is_is_known_before_it_has_imported_headrace():
    packed = cloudpickle.dumps([kind() for kind in CLASSES])
    done = subprocess.run(
        [sys.executable, "-c", HOMES], input=packed, capture_output=True, check=True
    )
    homes, imported = json.loads(done.stdout)
    assert imported == []
    for home in map(Home._make, homes):
        assert home.node == socket.gethostname()
        assert home.pid != os.getpid()
        assert str(home) == f"node {home.node}, process {home.pid}, log {home.log}"


@pytest.mark.parametrize("kind", CLASSES)
def test_a_node_without_headrace_is_told(kind, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ModuleNotFoundError, match=r"^headrace is not installed on .*: install it on"
    ):
        kind()().home()


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
    """As Ray's."""


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

"""Scheduling of workers and head on shared cores."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from worlds import CountingEnv


def scheduled(pid: int) -> dict[str, str]:
    """Return the kernel's scheduling policy of a process."""
    file = Path(f"/proc/{pid}/sched")
    lines = file.read_text().splitlines() if file.exists() else []
    return {key.strip(): value.strip() for key, _, value in (x.partition(" :") for x in lines)}


def test_workers_have_longer_turns_than_the_head_and_are_as_nice_as_they_were(make):
    own = scheduled(os.getpid())
    release = [int(x) for x in os.uname().release.split(".")[:2]]
    if "se.slice" not in own or release < [6, 12]:
        pytest.skip("the kernel doesn't tell")
    envs = make(CountingEnv)
    for node in envs._head.pool._nodes:
        told = scheduled(node.child.pid)
        assert int(told["se.slice"]) == 20_000_000 > int(own["se.slice"])
        assert int(told["prio"]) == min(139, int(own["prio"]) + 10)

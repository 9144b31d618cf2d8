"""Real kills: at every system call of a save, and at random ones of many."""

from __future__ import annotations

import ctypes
import itertools
import mmap
import os
import random
import signal
import sys
import time

import pytest

from headrace.rundir import checkpoint
from tests.rundir.crashes import SITUATIONS, check, each_death, parts

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(sys.platform != "linux", reason="ptrace as Linux has it"),
]
TRACEME, SYSCALL = 0, 24


def killed_at(count: int, work) -> bool:
    """Kill a child at the start or end of system call ``count`` of ``work``; False: it ended."""
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    pid = os.fork()
    if pid == 0:
        try:
            if ptrace(TRACEME, 0, None, None) != 0:
                os._exit(2)
            os.kill(os.getpid(), signal.SIGSTOP)
            work()
        finally:
            os._exit(0)
    _, status = os.waitpid(pid, 0)
    if not os.WIFSTOPPED(status):
        pytest.skip("no ptrace here")
    for _ in range(count):
        assert ptrace(SYSCALL, pid, None, None) == 0
        _, status = os.waitpid(pid, 0)
        if os.WIFEXITED(status):
            return False
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return True


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.timeout(900)
def test_killed_at_every_system_call_a_save_leaves_a_whole_checkpoint(tmp_path, situation):
    saved, before, run_dir = parts(), tmp_path / "before", tmp_path / "run"
    before.mkdir()
    SITUATIONS[situation](saved, before)
    deaths = each_death(
        before, run_dir, lambda call: killed_at(call, lambda: saved.save_and_rotate(run_dir, 128))
    )
    count = 0
    for _ in deaths:
        count += 1
        check(saved, run_dir, new=128)
    print(f"{situation}: {count} stops")
    assert count >= 100


def save_for_ever(saved, run_dir, first: int, shared: mmap.mmap) -> None:
    for env_steps in itertools.count(first):
        shared[0] = 1
        saved.save_and_rotate(run_dir, env_steps)
        shared[0] = 0
        shared[1:9] = env_steps.to_bytes(8, "big")


@pytest.mark.timeout(900)
def test_after_200_random_kills_within_a_save_there_is_always_a_whole_checkpoint(tmp_path):
    saved, shared, generator = parts(), mmap.mmap(-1, 16), random.Random(0)
    saved.save(tmp_path, 1)
    shared[1:9] = (1).to_bytes(8, "big")
    kills = 0
    while kills < 200:
        first = int.from_bytes(shared[1:9], "big") + 1
        pid = os.fork()
        if pid == 0:
            save_for_ever(saved, tmp_path, first, shared)
        time.sleep(generator.uniform(0.0, 0.1))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        kills += shared[0] == 1  # it died within a save
        done = int.from_bytes(shared[1:9], "big")
        found = checkpoint.find(tmp_path)
        assert saved.same(found) in (done, done + 1)
        for path in (tmp_path / "checkpoints").glob("step_*"):
            assert path.suffix == ".tmp" or saved.same(path)

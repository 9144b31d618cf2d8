"""ClusterEnv on a real SLURM: from outside, from inside an allocation, and what is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import headrace as hr
from headrace.errors import ConfigError

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

EXAMPLES = Path(__file__).parents[2] / "examples"
DRIVER = """
import os, sys, time, numpy as np, headrace as hr
def make():
    import gymnasium
    from worlds.noting import Noting
    return Noting(gymnasium.make("CartPole-v1"), sys.argv[1])
config = hr.SlurmConfig(nodes=2, start_timeout_s=90)
with hr.ClusterEnv({"type": make, "envs_per_node": 3}, config) as envs:
    obs, _ = envs.reset(seed=0)
    for _ in range(20):
        obs, reward, *_ = envs.step(envs.action_space.sample())
    print("stepped", obs.shape, reward.sum(), flush=True)
    if sys.argv[2:]:
        time.sleep(100)
print("closed", any(name.startswith("RAY_") for name in os.environ), flush=True)
"""


@pytest.fixture
def driver(tmp_path):
    """Starts the driver, alone or behind the words of another command."""
    (tmp_path / "driver.py").write_text(
        DRIVER.replace("sys.argv[1]", repr(str(tmp_path / "notes")))
    )
    (tmp_path / "notes").mkdir()
    started = []

    def run(*before: str, stays: bool = False) -> subprocess.Popen:
        words = [*before, sys.executable, "driver.py", "notes", *(["stay"] if stays else [])]
        output = (tmp_path / "output.txt").open("w")
        started.append(subprocess.Popen(words, cwd=tmp_path, stdout=output, stderr=output))
        return started[-1]

    yield run
    for one in started:
        one.kill()
        one.wait(10)


def acted(folder) -> set[str]:
    return {path.name.split("-")[0] for path in folder.iterdir()}


@pytest.mark.parametrize("where", ["outside", "inside"])
def test_workers_run_on_the_job_s_nodes_and_are_gone_afterwards(slurm, driver, tmp_path, where):
    before = ["salloc", "--nodes=2", "--exclusive", "--quiet"] if where == "inside" else []
    code = driver(*before).wait(150)
    output = (tmp_path / "output.txt").read_text()
    assert code == 0, output
    assert "stepped (6, 4) " in output
    assert "closed False" in output
    assert {"node1", "node2"} <= acted(tmp_path / "notes")
    assert slurm.left() == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["driver.py", "notes", "output.txt"]


def test_the_example_of_ppo_learns_on_the_nodes_of_a_job(slurm, tmp_path):
    words = "--env-id CartPole-v1 --nodes 2 --place slurm --total-steps 4000 --eval-episodes 1"
    done = subprocess.run(
        [sys.executable, EXAMPLES / "ppo.py", *words.split()],
        cwd=tmp_path, capture_output=True, text=True, timeout=150, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "weight syncs [" in done.stdout
    assert slurm.left() == []


@pytest.mark.full
def test_a_job_ends_with_the_driver_that_was_killed(slurm, driver, tmp_path):
    process = driver(stays=True)
    deadline = time.monotonic() + 90
    while "stepped" not in (tmp_path / "output.txt").read_text():
        assert time.monotonic() < deadline, (tmp_path / "output.txt").read_text()
        time.sleep(0.2)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(10)
    assert slurm.left(150) == []


def test_what_slurm_has_not_is_refused_before_a_job_waits(slurm):
    with pytest.raises(ConfigError, match=r"nodes=9, but partition main has 4"):
        hr.ClusterEnv({"env_name": "CartPole-v1"}, hr.SlurmConfig(nodes=9))
    assert slurm.queue() == ""

"""Actors on hosts of a network that are killed, disconnected and added during a run."""

from __future__ import annotations

import importlib.util
import itertools
import json
import re
import secrets
import signal
import sys
import time
from pathlib import Path

import pytest

from headrace.ray.local_cluster import HEALTH
from headrace.rundir.files import read_jsonl
from tests.launch import hosts as network

pytestmark = pytest.mark.cluster
HEAD = "10.99.0.1"
SCRIPT = """
import json, time
import headrace as hr

SLOW = {"env": "worlds:SlowEnv", "env_kwargs": {"step_seconds": 0.001}}  # which leaves cores free

def note(result, trainer):
    queue = trainer.source._queue
    act = [a for a in queue.homes if queue.slots.is_present(a)]
    print(json.dumps({
        "at": time.monotonic(), "steps": result.env_steps, "lost": result.lost,
        "restarts": result.restarts, "nodes": sorted(queue.homes[a].node for a in act),
    }))

hr.train(
    **SLOW, algo=hr.APPO(), num_actors=3, min_actors=1, envs_per_actor=16, fragment_length=32,
    total_steps=10**9, run_dir="run", cluster="ray:10.99.0.1:6379", eval_episodes=0,
    log_interval_s=0.1, callbacks=[note],
)

def note_learners(result, group):
    [learners] = group._living
    nodes = [home.node for home in learners._homes]
    print(json.dumps({"at": time.monotonic(), "steps": result.env_steps, "learners": nodes}))

hr.train(
    **SLOW, algo=hr.PPO(), num_learners=2, transport="serial", envs_per_actor=16,
    fragment_length=32, total_steps=10**9, run_dir="learners", cluster="ray:10.99.0.1:6379",
    eval_episodes=0, log_interval_s=0.1, checkpoint_interval=1_000, learner_timeout_s=10.0,
    max_restarts=3, callbacks=[note_learners],
)
"""


def ray_start(*flags: str) -> list[str]:
    """Return the command that starts Ray on a host."""
    program = [sys.executable, "-m", "ray.scripts.scripts", "start"]
    return [*program, "--object-store-memory=100000000", "--disable-usage-stats", *flags]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Four hosts; Ray runs on the first three, with room for one actor each."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs Ray")
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_AUTH_MODE", "token")
    patch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    four = network.made(tmp_path_factory.mktemp("hosts"), 4)
    yield four
    four.end()
    patch.undo()


def join(hosts, number: int, cores: int):
    """Let a host join the cluster."""
    flags = [f"--address={HEAD}:6379", f"--node-ip-address=10.99.0.{number}", "--block"]
    return hosts.run(number, *ray_start(*flags, f"--num-cpus={cores}"))


class Run:
    """Run the script on the first host and return it."""

    def __init__(self, hosts, folder: Path) -> None:
        (folder / "script.py").write_text(SCRIPT)
        flags = ["--head", f"--node-ip-address={HEAD}", "--port=6379", "--num-cpus=1"]
        flags += ["--include-dashboard=false", f"--system-config={json.dumps(HEALTH)}"]
        # One command, since each has a separate /tmp/ray.
        command = 'cd "$1"; shift; "$@" && exec "$0" -u script.py'
        words = ["bash", "-c", command, sys.executable, str(folder), *ray_start(*flags)]
        self.script, self._workers = hosts.run(1, *words), []
        while "Ray runtime started" not in self.script.output:
            assert self.script.process.poll() is None, self.script.output
            time.sleep(0.1)
        self._workers = [join(hosts, number, 1) for number in (2, 3)]

    @property
    def notes(self) -> list[dict]:
        lines = self.script.output.splitlines()
        return [json.loads(line) for line in lines if line.startswith("{") and line[-1] == "}"]

    def wait_until(self, found, timeout_s: float = 60.0) -> dict:
        """Return the next note for which ``found`` is true."""
        seen, deadline = len(self.notes), time.monotonic() + timeout_s
        while True:
            for note in self.notes[seen:]:
                if found(note):
                    return note
            assert self.script.process.poll() is None, self.script.output
            assert time.monotonic() < deadline, self.script.output[-3000:]
            time.sleep(0.05)

    def longest_wait_s(self, start: float, end: float) -> float:
        """Return the rate between two results in this time."""
        times = [note["at"] for note in self.notes if start - 5 < note["at"] <= end]
        return max(b - a for a, b in itertools.pairwise(times))


@pytest.mark.timeout(900)  # 90 s, alone on two cores
def test_training_goes_on_when_hosts_are_killed_and_cut_off_and_uses_one_that_joins(
    hosts, tmp_path
):
    run = Run(hosts, tmp_path)
    run.wait_until(lambda note: note.get("nodes", []) == ["host1", "host2", "host3"], 100.0)
    figures, before = {}, 0
    for what, number in (("killed", 2), ("cut off", 3)):
        start = time.monotonic()
        (hosts.kill if what == "killed" else hosts.cut)(number)
        # Within 60 s: Ray left to itself would notice after 80.
        after = run.wait_until(lambda note, n=number: f"host{n}" not in note.get("nodes", []))
        later = run.wait_until(lambda note, steps=after["steps"]: note["steps"] > steps + 2_000)
        lost = later["lost"] - before
        assert 1 <= lost <= 8  # not more than may be begun or waiting
        before = later["lost"]
        waited = run.longest_wait_s(start, later["at"])
        figures[what] = f"noticed after {after['at'] - start:.1f} s, no result for {waited:.1f} s"
        figures[what] += f", {lost} rollouts lost"
    start = time.monotonic()
    join(hosts, 4, 2)
    there = run.wait_until(lambda note: note.get("nodes", []) == ["host1", "host4", "host4"])
    run.wait_until(lambda note: note["steps"] > there["steps"] + 2_000)
    figures["added"] = f"both its actors act after {there['at'] - start:.1f} s"
    run.script.process.send_signal(signal.SIGTERM)
    run.wait_until(
        lambda note: note.get("learners") == ["host1", "host4"] and note["steps"] > 10**4
    )
    start = time.monotonic()
    hosts.cut(4)
    again = run.wait_until(lambda note: note.get("learners") == ["host1", "host1"], 100.0)
    assert again["steps"] > 5_000  # not from the start
    figures["learner cut off"] = f"all learn again after {again['at'] - start:.1f} s"
    run.script.process.send_signal(signal.SIGTERM)
    assert run.script.process.wait(60) == 0, run.script.output
    output = run.script.output
    assert 1 <= output.count("restarting all learners (restart ") <= 3
    assert re.search(r"learner 0 lost learner 1: |learner 1 \(node host4, ", output)
    print(*re.findall(r".*learners? \d.*|restarting all learners.*", output), sep="\n")
    print(*re.findall(r".* delivers again, .*|.* actors are running", output), sep="\n")
    print(figures)
    assert len(re.findall(r"\(node host4, .*\) delivers again, [0-9.]+ s after", output)) == 2
    assert "lost rollouts" in output
    [*_, last] = read_jsonl(tmp_path / "run" / "metrics.jsonl")
    assert last["queue/lost"] == before

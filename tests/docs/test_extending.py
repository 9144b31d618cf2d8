"""The steps that add an algorithm, an engine and a transport work, and the result trains."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import walks

USE = """
import numpy as np
import headrace as hr

envs = hr.make_vec("CartPole-v1", 5, engine="halves")
obs, _ = envs.reset(seed=3)
singles = hr.make_vec("CartPole-v1", 5, engine="sync")
expected, _ = singles.reset(seed=3)
for t in range(60):
    assert np.array_equal(obs, expected)
    actions = np.full(5, t % 2)
    obs, *others, _ = envs.step(actions)
    expected, *wanted, _ = singles.step(actions)
    assert all(np.array_equal(a, b) for a, b in zip(others, wanted)), t
envs.close()
try:
    hr.make_vec("FrozenLake-v1", 2, engine="halves")
except hr.ConfigError as error:
    assert "it supports Box observations only" in str(error)
else:
    raise AssertionError
"""
TRAINS = """
import headrace as hr

sizes = dict(num_actors=2, envs_per_actor=4, fragment_length=16, eval_episodes=0)
for algo in (hr.REINFORCE(bonus=0.25), hr.PPO(epochs=1, minibatches=2)):
    hr.train(
        "CartPole-v1", algo, engine="halves", transport="threads", total_steps=1_000,
        run_dir="runs/" + type(algo).__name__, **sizes,
    )
"""
CONFORMS = """
import pytest
import test_conformance as suite
from headrace.transport.local import ThreadQueue


class Threads(suite.Serial):
    def __init__(self, ordered):
        super().__init__(ordered)
        self.queue = ThreadQueue(self.slots)

    def start(self, counts, delays=None, faults=None):
        def looped(actor, port):
            sequence = iter(range(10**6))
            return lambda: suite.fill(self.slab, port, actor, next(sequence))

        for actor in range(suite.NUM_ACTORS):
            self.queue.attach(actor, looped(actor, self.queue.port(actor)))


for test in (
    suite.test_every_rollout_arrives_exactly_once_in_its_actors_order,
    suite.test_ordered_take_gives_the_same_number_from_each_actor_by_actor,
    suite.test_an_actor_never_has_more_rollouts_out_than_it_owns_slots,
    suite.test_closing_twice_is_harmless_and_wakes_the_actors,
):
    made = []
    test(lambda ordered: made.append(Threads(ordered)) or made[0])
    made[0].close()
queue = Threads(False).queue
queue.attach(0, lambda: 1 / 0)
with pytest.raises(ZeroDivisionError):
    queue.take(1, 10.0)
"""


def follow_and_run(folder: Path, code: str) -> None:
    """Apply the page's instructions to a copy of headrace, and run code with it."""
    walks.follow(folder)
    (folder / "use.py").write_text(code)
    places = [str(folder), str(walks.ROOT / "tests/transport"), str(walks.ROOT / "tests")]
    done = subprocess.run(
        [sys.executable, "use.py"],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(places)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_walks_of_the_page_give_an_algorithm_an_engine_and_a_transport(tmp_path):
    follow_and_run(tmp_path, USE + CONFORMS)
    assert list(walks.files()) == [
        "headrace/algos/reinforce.py", "headrace/envs/halves.py", "headrace/transport/local.py",
    ]  # fmt: skip


@pytest.mark.slow
def test_what_the_walks_give_trains(tmp_path):
    follow_and_run(tmp_path, TRAINS)
    for name in ("REINFORCE", "PPO"):
        config = json.loads((tmp_path / f"runs/{name}/config.json").read_text())["config"]
        assert (config["engine"], config["transport"]) == ("halves", "threads")
        summary = json.loads((tmp_path / f"runs/{name}/summary.json").read_text())
        assert summary["env_steps"] >= 1_000

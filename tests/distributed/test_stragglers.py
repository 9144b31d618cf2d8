"""Rollouts that end early: after a time limit, or because the other learners have theirs."""

from __future__ import annotations

import json
import threading
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from patience import PATIENCE_S

import headrace as hr
from headrace.distributed.preemption import Preemption
from headrace.types import SingleLearner


def slow_env(flag: str | None, step_s: float):
    """A slow environment; with a flag only the first one that is stepped is slow."""

    def is_first(flag: str) -> bool:
        try:
            Path(flag).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    class Slow(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,))
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self) -> None:
            self._slow = True if flag is None else None

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self._t = 0
            return np.zeros(2, np.float32), {}

        def step(self, action):
            if self._slow is None and self._t:  # one step was a first look at the environment
                self._slow = is_first(flag)
            if self._slow:
                time.sleep(step_s)
            self._t += 1
            return np.zeros(2, np.float32), 1.0, self._t == 50, False, {}

    return Slow


@pytest.mark.parametrize("transport", ["serial", "shm"])
@pytest.mark.parametrize(
    "algo", [hr.PPO(epochs=1, minibatches=2), hr.IMPALA()], ids=["ppo", "impala"]
)
def test_a_rollout_that_takes_too_long_is_cut_and_only_its_real_steps_count(
    tiny, finish, algo, transport
):
    config = tiny(
        env=slow_env(None, 0.01), algo=algo, transport=transport, envs_per_actor=2,
        fragment_length=64, total_steps=40, max_rollout_seconds=0.1,
    )  # fmt: skip
    trainer, results = finish(config)
    assert trainer.env_steps == results[-1].env_steps >= 40
    per_update = np.diff([0] + [r.env_steps for r in results])
    assert (per_update >= 2).all()
    assert (per_update <= 2 * 6).all()  # 0.1 s are ten steps of 0.01 s, one after the other
    assert all(r.policy_loss is not None for r in results)


class Notes(SingleLearner):
    """A group with given notes of the other learners."""

    size = 4

    def __init__(self) -> None:
        super().__init__()
        self.left = [-1] * 4

    def note(self, number: int) -> None:
        self.left[0] = number

    def notes(self) -> list[int]:
        return list(self.left)


@pytest.fixture
def preemption():
    group, cuts = Notes(), []
    happened = threading.Event()

    def cut(update: int) -> None:
        cuts.append(update)
        happened.set()

    one = Preemption(group, 0.5, cut)
    yield one, group, cuts, happened
    one.close()
    assert not any(t.name == "headrace-preempt" for t in threading.enumerate())


def test_rollouts_are_cut_once_enough_learners_have_theirs(preemption):
    one, group, cuts, happened = preemption
    with one.collecting(7):
        group.left[1] = 7
        assert not happened.wait(0.1)  # one of four is less than half
        group.left[2] = 6  # an update behind
        assert not happened.wait(0.1)
        group.left[2] = 8  # an update ahead
        assert happened.wait(PATIENCE_S)
    assert cuts == [7]
    assert group.left[0] == 7  # and says that it has its rollouts
    happened.clear()
    with one.collecting(8):
        assert not happened.wait(0.1)  # only learner 2
        group.left[3] = 8
        assert happened.wait(PATIENCE_S)
    assert cuts == [7, 8]


def test_nothing_is_cut_while_no_rollouts_are_collected(preemption):
    one, group, cuts, happened = preemption
    with one.collecting(1):
        pass
    group.left[1] = group.left[2] = group.left[3] = 5
    assert not happened.wait(0.1)
    assert cuts == []


def steps_of(run_dir, rank: int) -> list[int]:
    lines = (Path(run_dir) / "iterations" / f"rank_{rank}.jsonl").read_text().splitlines()
    return [json.loads(line)["steps"] for line in lines]


@pytest.mark.parametrize("transport", [pytest.param("serial", marks=pytest.mark.slow), "shm"])
def test_the_learner_that_is_behind_cuts_its_rollouts_for_the_other(tiny, tmp_path, transport):
    env = slow_env(str(tmp_path / "flag"), 0.05)
    config = tiny(
        env=env, transport=transport, num_learners=2, num_actors=2, envs_per_actor=1,
        fragment_length=32, total_steps=200, preempt_fraction=0.5, learner_timeout_s=2 * PATIENCE_S,
    )  # fmt: skip
    with hr.LearnerGroup(config, notify=lambda text: None) as group:
        results = list(group)
    steps = sorted((steps_of(config.run_dir, rank) for rank in (0, 1)), key=sum)
    assert results[-1].env_steps == sum(map(sum, steps)) >= 200
    slow, fast = (some[1:] for some in steps)  # in the first update either may start later
    assert min(fast) >= 31  # 32, or 31 and a filler
    assert all(7 <= n < 31 for n in slow)  # a quarter at least, and not all
    assert sum(slow) < 0.75 * sum(fast)

"""Texts travel from environments to the language LSTM, and policies learn from them."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Dict, Discrete, Text

import headrace as hr
from headrace.errors import ConfigError, EnvironmentFault

TASKS = ["Go left!", "go right", "do not go right", "wait"]


class InstructionEnv(gymnasium.Env):
    """Reward 1 for following the instruction, which changes at each of eight steps."""

    observation_space = Dict(task=Text(20, charset="abcdefghijklmnopqrstuvwxyzG !"))
    action_space = Discrete(len(TASKS))

    def __init__(self, spoken=True):
        self._spoken = spoken

    def _observed(self):
        self._task, self._left = int(self._random.integers(len(TASKS))), self._left - 1
        return {"task": TASKS[self._task] if self._spoken else self._task}

    def reset(self, *, seed=None, options=None):
        if seed is not None:
            self._random = np.random.default_rng(seed)
        self._left = 9
        return self._observed(), {}

    def step(self, action):
        reward = float(action == self._task)
        return self._observed(), reward, self._left == 0, False, {}


class Mission(gymnasium.Space):
    """Strings of another class."""

    def __init__(self):
        super().__init__(dtype=str)

    def sample(self, mask=None, probability=None):
        return TASKS[self.np_random.integers(len(TASKS))]

    def contains(self, x):
        return isinstance(x, str)


class MissionEnv(InstructionEnv):
    observation_space = Dict(task=Mission())


@pytest.mark.parametrize(
    ("engine", "transport", "algo"),
    [
        pytest.param(
            *("sync", "serial", hr.PPO(learning_rate=5e-3, epochs=2, minibatches=4)),
            marks=pytest.mark.full,
        ),
        ("threads", "shm", hr.APPO(learning_rate=5e-3, epochs=2, minibatches=2)),
    ],
)
def test_what_is_said_is_learnt_saved_and_done(engine, transport, algo, tiny, finish):
    network = hr.Network((16,), max_words=5, word_buckets=50)
    config = tiny(
        env=InstructionEnv, engine=engine, transport=transport, algo=algo, network=network,
        envs_per_actor=16, fragment_length=16, total_steps=40_000, stop_return=7.8,
    )  # fmt: skip
    finish(config)
    policy = hr.load(config.run_dir)
    done = [policy.predict({"task": task})[0] for task in TASKS]
    assert done == list(range(len(TASKS)))
    assert policy.predict({"task": TASKS})[0].tolist() == done
    assert hr.evaluate(policy, InstructionEnv, 4).mean == 8


def test_strings_of_an_own_space_are_read_too(tiny, finish):
    config = tiny(env=MissionEnv)
    finish(config)
    policy = hr.load(config.run_dir)
    assert policy.predict({"task": TASKS[0]})[0] in range(len(TASKS))
    assert hr.evaluate(policy, MissionEnv, 2).mean >= 0
    with pytest.raises(ConfigError, match=r"engine='async' can't run MissionEnv: a custom space"):
        finish(tiny(env=MissionEnv, engine="async", transport="serial", run_dir=None))


def test_what_should_be_a_text_and_is_none_is_told_of(tiny, finish):
    with pytest.raises(
        EnvironmentFault, match=r"as its observation at 'task', which should be in .*: return a str"
    ):
        finish(tiny(env=InstructionEnv, env_kwargs={"spoken": False}, transport="serial"))

"""Runs that start from another run's policy: what is copied, and what must match."""

from __future__ import annotations

import contextlib

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError, ConfigError


class Moving(gymnasium.Env):
    """Episodes of ten steps; observations have a deviation of ``scale``."""

    def __init__(self, size: int = 3, actions: int = 2, scale: float = 1.0) -> None:
        self.observation_space = Box(-scale, scale, (size,), np.float32)
        self.action_space = Discrete(actions)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._observe(), {}

    def step(self, action):
        self.time += 1
        return self._observe(), float(action), self.time == 10, False, {}

    def _observe(self):
        high = self.observation_space.high
        return self.np_random.uniform(-high, high).astype(np.float32)


@pytest.fixture
def run(tiny, tmp_path):
    """Creates the Config of a run with this name."""

    def make(name: str, **settings) -> hr.Config:
        kwargs = {"run_dir": str(tmp_path / name), "env": Moving, "transport": "serial"}
        return tiny(**kwargs | settings)

    return make


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    """The directory of a run to start from, read-only."""
    run_dir = str(tmp_path_factory.mktemp("runs") / "first")
    sizes = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 8, "total_steps": 256}
    algo = hr.PPO(epochs=2, minibatches=2)
    settings = {"transport": "serial", "run_dir": run_dir, "eval_episodes": 0}
    list(hr.Trainer(hr.Config(Moving, algo, **sizes, **settings), notify=str))
    return run_dir


def test_weights_and_statistics_are_the_other_runs_at_the_start_and_all_else_is_new(run, first):
    other = {"env_kwargs": {"scale": 10.0}, "algo": hr.A2C(), "seed": 5, "total_steps": 256}
    config = run("second", init_from=first, **other)
    before = hr.load(first).state_dict()
    with contextlib.closing(hr.Trainer(config, notify=str)) as trainer:
        weights = trainer.policy.state_dict()
        assert (
            weights["torso.normalizer.count"] > 0 if "torso.normalizer.count" in weights else True
        )
        for name, value in before.items():
            assert torch.equal(value, weights[name]), name
        assert trainer.policy.popart.scale > 0
        assert (trainer.env_steps, trainer.updates, trainer.learner.num_steps) == (0, 0, 0)
        for _ in trainer:
            pass
    changed = hr.load(config.run_dir).state_dict()
    assert not torch.equal(changed["policy_head.weight"], before["policy_head.weight"])
    kept = hr.load(first).state_dict()
    assert torch.equal(kept["policy_head.weight"], before["policy_head.weight"])


def test_a_run_that_began_so_resumes_with_its_own_weights(run, first):
    config = run("second", init_from=first, total_steps=128)
    list(hr.Trainer(config, notify=str))
    again = resume_config(config.run_dir, total_steps=128)
    assert again.init_from is None
    trainer = hr.Trainer(again, notify=str)
    own = hr.load(config.run_dir).state_dict()
    assert all(torch.equal(v, own[k]) for k, v in trainer.policy.state_dict().items())
    with pytest.raises(ConfigError, match=r"init_from=.* must be None with resume"):
        resume_config(config.run_dir, init_from=first)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"env_kwargs": {"size": 4}}, ["observation space Box", "(3,)", "(4,)"]),
        ({"env_kwargs": {"actions": 5}}, ["action space Discrete(2)", "Discrete(5)"]),
        ({"network": hr.Network(hidden=(32,))}, ["hidden=(64, 64)", "hidden=(32,)"]),
        ({"scale_free": False}, ["normalize_observations=True", "normalize_observations=False"]),
        ({"network": hr.Network(core="lstm")}, ["core=None", "core='lstm'"]),
    ],
)
def test_what_does_not_match_is_named_with_both_values(run, first, settings, words):
    with pytest.raises(ConfigError) as error:
        hr.Trainer(run("second", init_from=first, **settings))
    for word in ["init_from=", "first'", *words]:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_where_a_run_begins_must_exist_and_lie_elsewhere(run, first):
    with pytest.raises(CheckpointError, match=r"nowhere'? does not exist"):
        hr.Trainer(run("second", init_from=first + "/nowhere"))
    with pytest.raises(ConfigError, match="choose another run_dir"):
        hr.Trainer(run("x", run_dir=first, init_from=first, overwrite=True))
    assert hr.load(first) is not None

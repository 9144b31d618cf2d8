"""EnvPool's quicker step returns what envpool's own does."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.spaces import Dict

import headrace as hr
from headrace.envs.adapters import EnvPool
from headrace.ops import tree
from headrace.rundir.files import read_jsonl

pytest.importorskip("envpool")

PLAIN = ("CartPole-v1", "Pendulum-v1", "FrozenLake-v1", "HalfCheetah-v4", "Pong-v5", "Catch-v0")


@pytest.mark.parametrize("env_id", [*PLAIN, "MiniGrid-Empty-5x5-v0"])
def test_a_step_returns_what_envpools_own_does(env_id):
    ours, own = (EnvPool(env_id, 3, 7, {"max_episode_steps": 20}) for _ in range(2))
    ours.action_space.seed(1)
    assert_same(ours.reset(), own.reset())
    for _ in range(50):
        actions = ours.action_space.sample()
        theirs = own._pool.step(np.asarray(actions, own._action_dtype))
        assert_same(ours.step(actions), theirs)
    assert (ours._step == ours._pool.step) == isinstance(ours.observation_space, Dict)
    ours.close(), own.close()


def test_actions_of_another_shape_are_refused_by_each_pool():
    envs = EnvPool("Pendulum-v1", 2, 0, {})
    for seed in (0, 1):
        envs.reset(seed=seed)
        with pytest.raises(RuntimeError, match="Expected shape"):
            envs.step(np.zeros((2, 5)))
        envs.step(np.zeros((2, 1)))
    envs.close()


def assert_same(ours, theirs):
    """Check that two results of a step or reset are equal, including infos and dtypes."""
    assert len(ours) == len(theirs)
    tree.map_leaves(assert_equal, *(tuple(map(sorted_, one)) for one in (ours, theirs)))


def assert_equal(one, other):
    assert one.dtype == other.dtype
    np.testing.assert_array_equal(one, other)


def sorted_(told):
    """Return dicts in the order of their names, as trees are compared in order."""
    if not isinstance(told, dict):
        return told
    return {name: sorted_(told[name]) for name in sorted(told)}


def test_its_own_numbers_are_no_metrics(tmp_path):
    sizes = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 32, "transport": "serial"}
    run = {"total_steps": 2_000, "eval_episodes": 0, "run_dir": tmp_path / "run"}
    hr.train("Acrobot-v1", "ppo", engine="envpool", **sizes, **run)
    names = {name for line in read_jsonl(tmp_path / "run/metrics.jsonl") for name in line}
    assert "charts/episodic_return" in names
    assert not [name for name in names if name.startswith("env/")]

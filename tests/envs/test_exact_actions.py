"""Environments receive actions in the exact types of their space, in separate memory."""

from __future__ import annotations

import contextlib
import json
import warnings

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple

import headrace as hr
from headrace.envs.make import make_vec
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.spaces.json import alike, space_from_json, space_to_json

OBSERVED = Box(-9, 9, (3,), np.float32)
SPACES = {
    "int8": Discrete(3, dtype=np.int8),
    "uint8 with a start": Discrete(3, start=2, dtype=np.uint8),
    "uint8 choices": MultiDiscrete([3, 4], dtype=np.uint8),
    "table of int32 choices": MultiDiscrete([[2, 3], [4, 5]], np.int32, start=[[1, 0], [0, -2]]),
    "bits": MultiBinary((2, 3)),
    "number": Box(-1, 1, (), np.float32),
    "float64 number": Box(0, 9, (), np.float64),
    "float16": Box(-1, 1, (2,), np.float16),
    "half-infinite": Box(np.float32([0, -np.inf]), np.float32([np.inf, 3])),
    "widest": Box(-3e38, 3e38, (2,), np.float32),
    "nested": Dict(
        a=Tuple([Discrete(2, dtype=np.int16), Box(0, 1, (), np.float16)]),
        b=Dict(c=MultiDiscrete([2, 2], dtype=np.int8)),
    ),
}
ENGINES = ("sync", "threads", "async")


def forms(action):
    """Return the type, dtype and shape of each part."""
    return tree.map_leaves(lambda x: (type(x), np.asarray(x).dtype, np.shape(x)), action)


class Exacting(gymnasium.Env):
    """Fails if an action has other types than a sample, or if the previous one has changed."""

    observation_space = OBSERVED

    def __init__(self, space="int8", changes=False):
        self.action_space, self.changes, self.kept = SPACES[space], changes, None
        self.expected = forms(self.action_space.sample())

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.action_space.contains(action), forms(action)
        assert forms(action) == self.expected, forms(action)
        if self.kept is not None:
            tree.map_leaves(np.testing.assert_array_equal, self.kept, self.copy)
        size = sum(float(np.abs(np.float64(x)).sum()) for x in tree.leaves(action))
        if self.changes:
            tree.map_leaves(overwrite, action)
        self.kept, self.copy = action, tree.map_leaves(np.copy, action)
        self.t += 1
        return np.full(3, self.t % 3, np.float32), min(size, 9.0), self.t == 10, False, {}


def overwrite(x):
    if isinstance(x, np.ndarray):
        with contextlib.suppress(ValueError):  # read-only arrays are fine, too
            x[...] = 1


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("name", SPACES)
def test_actions_of_a_policy_have_the_types_of_the_space(name, engine):
    if engine == "async" and name not in ("int8", "number", "nested"):
        return  # processes take a while to start
    space = SPACES[name]
    policy = Policy(OBSERVED, space, hr.Network(scale_actions=True))
    with contextlib.closing(make_vec(Exacting, 2, engine, {"space": name})) as envs:
        obs, _ = envs.reset(seed=0)
        for _ in range(12 if engine == "sync" else 3):
            action, _ = policy.predict(obs, deterministic=False)
            obs, *_ = envs.step(action)
    alone, _ = policy.predict(np.zeros(3, np.float32))
    assert forms(alone) == forms(space.sample())


@pytest.mark.parametrize("name", SPACES)
def test_a_saved_policy_keeps_the_types_of_its_actions(name):
    space = SPACES[name]
    again = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert again == space
    assert forms(again.sample()) == forms(space.sample())
    assert alike(space, again)


def test_spaces_of_older_files_without_dtypes_are_alike():
    old = {"type": "Discrete", "n": 3, "start": 0}
    assert alike(space_from_json(old), SPACES["int8"])
    assert not alike(Discrete(4), SPACES["int8"])


def trained(tiny, finish, folder, space, **settings):
    settings = {"transport": "serial", "total_steps": 256, "run_dir": str(folder)} | settings
    kwargs = {"space": space, "changes": settings.pop("changes", False)}
    trainer, _ = finish(tiny(env=Exacting, env_kwargs=kwargs, **settings))
    return torch.cat([x.double().flatten() for x in trainer.policy.state_dict().values()])


@pytest.mark.parametrize("engine", ["sync", "async"])
@pytest.mark.parametrize("name", ["uint8 choices", "bits", "float16", "number", "nested"])
def test_actions_that_an_environment_changes_do_not_change_training(
    tiny, finish, tmp_path, name, engine
):
    if engine == "async" and name != "bits":
        return  # processes receive copies of all kinds alike
    one, other = (
        trained(tiny, finish, tmp_path / str(changes), name, engine=engine, changes=changes)
        for changes in (False, True)
    )
    assert torch.equal(one, other)


def test_environments_in_threads_may_keep_and_change_their_actions(tiny, finish, tmp_path):
    for name in ("bits", "float16"):
        trained(tiny, finish, tmp_path / name, name, engine="threads", changes=True)


class KeepingVector(gymnasium.vector.VectorEnv):
    """Keeps the batch of actions that it receives, and may overwrite it."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs=1, space="bits", changes=False):
        self.num_envs, self.single_action_space = num_envs, SPACES[space]
        self.single_observation_space, self.changes = OBSERVED, changes
        batch = gymnasium.vector.utils.batch_space
        self.action_space = batch(self.single_action_space, num_envs)
        self.observation_space = batch(OBSERVED, num_envs)
        self.kept = None

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 3), np.float32), {}

    def step(self, actions):
        assert self.action_space.contains(actions), forms(actions)
        if self.kept is not None:
            tree.map_leaves(np.testing.assert_array_equal, self.kept, self.copy)
        parts = [np.float64(x).reshape(self.num_envs, -1) for x in tree.leaves(actions)]
        reward = np.concatenate(parts, 1).sum(1).clip(-9, 9)
        if self.changes:
            tree.map_leaves(overwrite, actions)
        self.kept, self.copy = actions, tree.map_leaves(np.copy, actions)
        flags = np.zeros(self.num_envs, bool)
        return np.zeros((self.num_envs, 3), np.float32), reward, flags, flags.copy(), {}


@pytest.mark.parametrize("name", ["int8", "uint8 choices", "bits", "float16", "nested"])
def test_a_vector_environment_may_keep_and_change_its_actions(tiny, finish, tmp_path, name):
    weights = []
    for changes in (False, True):
        kwargs = {"space": name, "changes": changes}
        settings = {
            "transport": "serial",
            "total_steps": 256,
            "run_dir": str(tmp_path / str(changes)),
        }
        trainer, _ = finish(tiny(env=KeepingVector, env_kwargs=kwargs, **settings))
        weights.append(torch.cat([x.double().flatten() for x in trainer.policy.parameters()]))
    assert torch.equal(*weights)

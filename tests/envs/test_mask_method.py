"""Masks from a method ``action_masks()`` are applied in every engine."""

from __future__ import annotations

import contextlib
import itertools
import json
import warnings
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.utils import batch_space

import headrace as hr
from headrace.envs.make import make_vec
from headrace.envs.probe import probe
from headrace.errors import EnvironmentFault
from headrace.nn.policy import Policy
from tests.tries import few_of

SPACE = Box(-1, 1, (2,), np.float32)
SPACES = {
    "one": Discrete(4),
    "start": Discrete(4, start=3),
    "several": MultiDiscrete([2, 3]),
    "bits": MultiBinary(3),
}
ENGINES = ["sync", "threads", "native"]
FEW = [("sync", "start"), ("sync", "bits"), ("threads", "several"), ("native", "several")]
FLAT = {
    "one": [1, 0, 0, 1],
    "start": [1, 0, 0, 1],
    "several": [0, 1, 1, 0, 1],
    "bits": [1, 1, 1, 0, 0, 1],  # the second bit is 0, the third 1
}


class Door(gymnasium.Env):
    """Fails on forbidden actions, and if its method is called after the end of an episode."""

    observation_space = SPACE
    shown = None

    def __init__(self, space="one", shown=None):
        self.action_space, self.flat, self.over = SPACES[space], FLAT[space], True
        self.shown = shown
        if shown == "observation":
            mask = Box(0, 1, (len(self.flat),), np.int8)
            self.observation_space = Dict(place=SPACE, action_mask=mask)

    def action_masks(self):
        assert not self.over, "there is no next action"
        return np.array(self.flat, bool)

    def _seen(self):
        seen = np.zeros(2, np.float32)
        if self.shown != "observation":
            return seen
        return {"place": seen, "action_mask": np.array(self.flat, np.int8)}

    def _info(self):
        return {"action_mask": np.array(self.flat, np.int8)} if self.shown == "info" else {}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.over = 0, False
        return self._seen(), self._info()

    def step(self, action):
        check(self.action_space, self.flat, action)
        self.t += 1
        self.over = self.t == 7
        return self._seen(), 1.0, self.over, False, self._info()


def check(space, flat, action):
    if isinstance(space, Discrete):
        assert flat[int(action) - int(space.start)], action
    elif isinstance(space, MultiBinary):
        assert all(flat[2 * i + int(bit)] for i, bit in enumerate(action)), action
    else:
        assert flat[int(action[0])], action
        assert flat[2 + int(action[1])], action


class Around(gymnasium.Wrapper):
    """A wrapper without the method, which the environment inside has."""


class Masker(gymnasium.Wrapper):
    """A wrapper with the method, around an environment without it."""

    def action_masks(self):
        return [True, False]


class DoorVector(VectorEnv):
    """A vector environment with the method, for all rows."""

    metadata = {"autoreset_mode": AutoresetMode.NEXT_STEP}  # noqa: RUF012

    def __init__(self, num_envs=1, space="one", rows=None):
        self.num_envs, self.flat, self.rows = num_envs, FLAT[space], rows or num_envs
        self.single_observation_space, self.single_action_space = SPACE, SPACES[space]
        self.observation_space = batch_space(SPACE, num_envs)
        self.action_space = batch_space(SPACES[space], num_envs)

    def action_masks(self):
        return np.tile(np.array(self.flat, bool), (self.rows, 1))

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros((self.num_envs, 2), np.float32), {}

    def step(self, actions):
        for action in actions:
            check(self.single_action_space, self.flat, action)
        self.t += 1
        flags = np.full(self.num_envs, self.t % 8 == 7)
        reward = np.ones(self.num_envs)
        obs = np.zeros((self.num_envs, 2), np.float32)
        return obs, reward, flags, np.zeros_like(flags), {}


def in_loop(num_envs, space="one"):
    return SyncVectorEnv([lambda: Door(space)] * num_envs, autoreset_mode="NextStep")


def in_processes(num_envs, space="one"):
    return AsyncVectorEnv([lambda: Door(space)] * num_envs, autoreset_mode="NextStep")


MADE = {
    "sync": (Door, "sync"),
    "threads": (Door, "threads"),
    "async": (Door, "async"),
    "wrapped": (lambda space: Around(Around(Door(space))), "sync"),
    "native": (DoorVector, "native"),
}


@pytest.mark.parametrize("space", SPACES)
@pytest.mark.parametrize("made", MADE)
def test_masks_are_in_infos_and_a_policy_obeys_them(made, space):
    if made == "async" and space != "several":
        return  # processes take a while to start
    env, engine = MADE[made]
    policy = Policy(SPACE, SPACES[space], info_mask=True)
    with contextlib.closing(make_vec(env, 2, engine, {"space": space})) as envs:
        obs, infos = envs.reset(seed=0)
        for _ in range(6):
            assert infos["action_mask"].tolist() == [FLAT[space]] * 2
            mask = infos["action_mask"]
            action, _ = policy.predict(obs, deterministic=False, action_mask=mask)
            obs, *_, infos = envs.step(action)


@pytest.mark.parametrize("make", [in_loop, in_processes])
def test_the_method_of_single_environments_is_found_in_a_vector_environment_of_them(make):
    with contextlib.closing(make_vec(make, 2, "native", {"space": "one"})) as envs:
        _, infos = envs.reset(seed=0)
        assert infos["action_mask"].tolist() == [FLAT["one"]] * 2


@pytest.mark.parametrize(("engine", "space"), few_of(list(itertools.product(ENGINES, SPACES)), FEW))
def test_training_and_evaluation_never_take_a_forbidden_action(tiny, finish, space, engine):
    env = DoorVector if engine == "native" else Door
    how = {"env": env, "engine": engine, "env_kwargs": {"space": space}, "transport": "serial"}
    said = []
    trainer = hr.Trainer(tiny(**how, total_steps=256), notify=said.append)
    with contextlib.closing(trainer):
        assert len(list(trainer)) > 0
    assert "action masks: from action_masks()" in said
    described = json.loads(Path(trainer.config.run_dir, "config.json").read_text())
    assert described["mask_source"] == "action_masks()"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for deterministic in (True, False):
            kwargs = {"env_kwargs": how["env_kwargs"], "deterministic": deterministic}
            if engine != "native":
                hr.evaluate(trainer.policy, env, 3, engine=engine, **kwargs)


def test_the_method_of_a_wrapper_is_found(tiny, finish):
    said = []
    config = tiny(wrappers=(Masker,), transport="serial", total_steps=128)
    with contextlib.closing(hr.Trainer(config, notify=said.append)) as trainer:
        list(trainer)
    assert "action masks: from action_masks()" in said
    action, _ = trainer.policy.predict(
        np.zeros((50, 4)), deterministic=False, action_mask=[[True, False]] * 50
    )
    assert (action == 0).all()


def test_tasks_of_several_sizes_keep_their_own_masks(tiny, finish):
    config = tiny(tasks=("CartPole-v1", Door), num_actors=2, total_steps=128)
    trainer, _ = finish(config)
    assert trainer.policy.inputs.mask == "info"


@pytest.mark.parametrize(
    ("shown", "source"),
    [
        ("observation", "the observation's action_mask"),
        ("info", "info['action_mask']"),
        (None, "action_masks()"),
    ],
)
def test_masks_that_are_shown_come_before_the_method(shown, source):
    assert probe(Door, "sync", {"shown": shown}, 0).mask_source == source
    assert probe("CartPole-v1", "sync", {}, 0).mask_source == ""


class Bad(Door):
    def __init__(self, mask):
        super().__init__("one")
        self.mask = mask

    def action_masks(self):
        return self.mask


@pytest.mark.parametrize(
    ("mask", "words"),
    [
        ([True, False], r"action_masks\(\) .* shape \(2,\): Discrete\(4\) needs \[\.\.\., 4\]"),
        (["a", "b", "c", "d"], "action_masks.* give booleans"),
        (np.ones((3, 4)), r"shape \(12,\)"),
    ],
)
def test_a_mask_that_does_not_fit_is_named(mask, words):
    envs = make_vec(Bad, 2, "sync", {"mask": mask})
    with contextlib.closing(envs), pytest.raises(EnvironmentFault, match=words):
        envs.reset(seed=0)


def test_a_vector_environment_has_a_mask_for_each_row():
    envs, words = make_vec(DoorVector, 2, "native", {"rows": 3}), "3 masks: .* each of the 2"
    with contextlib.closing(envs), pytest.raises(EnvironmentFault, match=words):
        envs.reset(seed=0)


def test_a_method_that_returns_none_allows_everything():
    with contextlib.closing(make_vec(Bad, 2, "sync", {"mask": None})) as envs:
        assert "action_mask" not in envs.reset(seed=0)[1]


def test_predict_without_a_mask_warns_once(recwarn):
    policy, obs = Policy(SPACE, Discrete(4), info_mask=True), np.zeros(2, np.float32)
    for _ in range(2):
        policy.predict(obs, action_mask=[True] * 4)
    assert not recwarn
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            policy.predict(obs)
    (warning,) = caught
    assert "action_mask=" in str(warning.message)
    assert warning.filename == __file__
    Policy(SPACE, Discrete(4)).predict(obs)
    assert not recwarn

"""Unusual spaces, rewards and ends of other packages, in tiny stand-ins."""

from __future__ import annotations

import contextlib
import functools

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import (
    Box,
    Dict,
    Discrete,
    Graph,
    MultiBinary,
    MultiDiscrete,
    OneOf,
    Sequence,
    Text,
    Tuple,
)

import headrace as hr
from headrace.envs.make import make_vec
from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.policy import Policy

NUMBERS = Box(-1.0, 1.0, (3,))
DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64",
          "float16", "float32", "float64")  # fmt: skip

OBSERVATIONS = {
    **{dtype: Box(0, 1, (3,), np.dtype(dtype).type) for dtype in DTYPES},
    "bits as picture": Box(0, 1, (10, 10, 4), np.bool_),
    "small picture": Box(0, 9, (4, 4), np.uint8),
    "words": Text(6),
    "wide picture": Box(0, 255, (5, 16, 3), np.uint8),
    "channels first": Box(0, 65535, (1, 16, 16), np.uint16),
    "table": Box(-np.inf, np.inf, (10, 5), np.float64),
    "number": Box(0.0, 1.0, ()),
    "nothing": Box(0.0, 1.0, (0,)),
    "no parts": Dict({}),
    "half bounded": Box(np.array([-np.inf, 0.0]), np.array([1.0, np.inf]), dtype=np.float64),
    "square of bits": MultiBinary((2, 2)),
    "square of choices": MultiDiscrete([[2, 3], [4, 1]], start=[[0, 1], [-1, 5]]),
    "start": Discrete(3, start=-1),
    "NumPy's": Discrete(np.int64(3), start=np.int64(2)),
    "tuple": Tuple([NUMBERS, Tuple([Discrete(2)])]),
    "a.b": NUMBERS,
    "integer keys": Dict({1: NUMBERS, 2: Discrete(2)}),
}
ALONE_IS_EMPTY = ("nothing", "no parts")
ACTIONS = {
    "start": Discrete(3, start=4),
    "NumPy's": Discrete(np.int64(2), start=np.int64(-1)),
    "one": Discrete(1),
    "float64": Box(-1.0, 1.0, (2,), np.float64),
    "float16": Box(-1.0, 1.0, (2,), np.float16),
    "number": Box(-1.0, 1.0, ()),
    "half bounded": Box(np.array([-np.inf, 0.0]), np.array([np.inf, 1.0]), dtype=np.float64),
    "square of bits": MultiBinary((2, 2)),
    "tuple": Tuple([Discrete(2), Tuple([MultiDiscrete([2, 3])])]),
}


class StrangeEnv(gymnasium.Env):
    """Observes samples of its space, checks its actions, ends after five steps."""

    def __init__(self, observation_space=NUMBERS, action_space=None, reward=1.0, flag=bool) -> None:
        self.observation_space, self.action_space = observation_space, action_space or Discrete(2)
        self._reward, self._flag = reward, flag

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self._steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self._check(self.action_space, action)
        self._steps += 1
        end = self._flag(self._steps == 5)
        return self.observation_space.sample(), self._reward, end, self._flag(False), {}

    def _check(self, space, action):
        inner = space.spaces if isinstance(space, Dict) else None
        if inner is None and isinstance(space, Tuple):
            inner = dict(enumerate(space.spaces))
        for key, part in (inner or {}).items():
            self._check(part, action[key])
        assert inner or space.contains(np.asarray(action, space.dtype)), (space, action)
        assert inner or np.asarray(action).dtype == space.dtype, (space, action)


def finite(policy):
    return all(torch.isfinite(x).all() for x in policy.state_dict().values())


def train_and_load(tiny, finish, env):
    """Return the trained policy, and the one that is loaded from its files."""
    config = tiny(env=env, transport="serial", envs_per_actor=2, total_steps=16)
    trainer, results = finish(config)
    assert results
    loaded = hr.load(config.run_dir)
    assert finite(loaded)
    assert loaded.observation_space == trainer.policy.observation_space
    assert loaded.action_space == trainer.policy.action_space
    obs, _ = env().reset(seed=3)
    assert np.allclose(flat(trainer.policy, obs), flat(loaded, obs), atol=1e-2)


def flat(policy, obs):
    action, _ = policy.predict(obs)
    return gymnasium.spaces.flatten(policy.action_space, action)


def test_a_run_meets_every_space_at_once(tiny, finish):
    env = functools.partial(StrangeEnv, Dict(OBSERVATIONS), Dict(ACTIONS))
    train_and_load(tiny, finish, env)


@pytest.mark.full
@pytest.mark.parametrize("name", [name for name in OBSERVATIONS if name not in ALONE_IS_EMPTY])
def test_a_run_observes_each_space_alone(name, tiny, finish):
    train_and_load(tiny, finish, functools.partial(StrangeEnv, OBSERVATIONS[name]))


@pytest.mark.full
@pytest.mark.parametrize("name", ACTIONS)
def test_a_run_acts_in_each_space_alone(name, tiny, finish):
    train_and_load(tiny, finish, functools.partial(StrangeEnv, NUMBERS, ACTIONS[name]))


@pytest.mark.parametrize("name", ALONE_IS_EMPTY)
def test_nothing_to_observe_is_told_of(name):
    with pytest.raises(ConfigError, match="is empty"):
        Policy(OBSERVATIONS[name], Discrete(2))


@pytest.mark.parametrize(
    ("reward", "flag"),
    [
        (np.float64(1), np.bool_),
        (np.float32(1), int),
        (np.array(1.0), np.array),
        (1, np.uint8),
        (True, bool),
        (torch.tensor(1.0), torch.tensor),
    ],
)
def test_rewards_and_ends_of_any_kind_of_number(reward, flag):
    env = functools.partial(StrangeEnv, reward=reward, flag=flag)
    with contextlib.closing(make_vec(env, 2)) as envs:
        envs.reset(seed=0)
        steps = [envs.step(np.zeros(2, np.int64)) for _ in range(5)]
    assert steps[-1][1].tolist() == [1.0, 1.0]
    assert [step[2].any() for step in steps] == [False] * 4 + [True]
    assert steps[-1][2].dtype == bool


@pytest.mark.parametrize("reward", [np.ones(2), [1.0, 2.0], None, "1", 10**400])
def test_a_reward_that_is_no_number_is_told_of(reward):
    with contextlib.closing(make_vec(functools.partial(StrangeEnv, reward=reward), 2)) as envs:
        envs.reset(seed=0)
        with pytest.raises(
            EnvironmentFault, match=r"reward.* at step 1: return (a finite|one) number"
        ):
            envs.step(np.zeros(2, np.int64))


FILTER = """wrappers=('FilterObservation:{"filter_keys":["a","b"]}',)"""


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (
            Dict(a=NUMBERS, b=Tuple([Discrete(2), Text(4)]), c=Sequence(NUMBERS)),
            ["at 'c' Sequence", FILTER],
        ),
        (Tuple([NUMBERS, Sequence(NUMBERS)]), ["at 1 Sequence", "wrappers=('module:name',)"]),
        (Sequence(Discrete(2)), ["Sequence", "wrappers=('module:name',)"]),
        (Graph(NUMBERS, Discrete(2)), ["Graph", "wrappers=('module:name',)"]),
        (OneOf([NUMBERS, Discrete(2)]), ["OneOf", "wrappers=('module:name',)"]),
        (Discrete(10**9), ["has 1,000,000,000 discrete values", "MultiDiscrete", "wrappers="]),
        (Dict(a=MultiDiscrete([2, 10**9])), ["at 'a'", "has 1,000,000,002 discrete values"]),
    ],
)
def test_what_no_network_reads_is_named_with_the_wrapper(space, words):
    with pytest.raises(ConfigError) as caught:
        Policy(space, Discrete(2))
    text = str(caught.value)
    assert "\n" not in text
    assert all(word in text for word in words), text


@pytest.mark.parametrize(
    ("space", "words"),
    [
        (Text(4), ["Text", "module:name"]),
        (OneOf([NUMBERS, Discrete(2)]), ["OneOf", "module:name"]),
        (Box(0, 9, (2,), np.int64), ["int64", "MultiDiscrete", "module:name"]),
        (Box(0.0, 1.0, (0,)), ["has no elements"]),
        (Discrete(10**9), ["1,000,000,000 choices", "MultiDiscrete"]),
    ],
)
def test_what_no_policy_does_is_named(space, words):
    with pytest.raises(ConfigError) as caught:
        Policy(NUMBERS, space)
    assert all(word in str(caught.value) for word in words), caught.value


class OnlyOneEnv(StrangeEnv):
    """A simulator that runs only once per process."""

    running = 0

    def __init__(self):
        super().__init__()
        if OnlyOneEnv.running:
            raise RuntimeError("the simulator is\nrunning")
        OnlyOneEnv.running += 1

    def close(self):
        OnlyOneEnv.running -= 1


def test_a_second_one_in_a_process_that_fails_is_told_of_and_the_first_is_closed():
    for _ in range(2):
        with pytest.raises(
            EnvironmentFault, match=r"the simulator is running\): give envs_per_actor=1"
        ):
            make_vec(OnlyOneEnv, 2)
    make_vec(OnlyOneEnv, 1).close()
    assert OnlyOneEnv.running == 0


class ExitingEnv(StrangeEnv):
    def step(self, action):
        raise SystemExit(3)


def test_an_environment_that_exits_at_its_first_step_is_told_of(tiny, finish):
    with pytest.raises(EnvironmentFault, match="fails at its first step: SystemExit: 3"):
        finish(tiny(env=ExitingEnv, transport="serial"))

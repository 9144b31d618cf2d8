"""Invalid inputs of a policy raise a one-sentence error with what it takes."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Tuple

import headrace as hr
from headrace.errors import ConfigError
from headrace.nn.policy import Policy
from headrace.nn.predict import inputs_of

FLAT = Box(-1.0, 1.0, (4,), np.float32)
NESTED = Dict(
    camera=Box(0, 255, (2, 3), np.uint8), speed=Tuple([Box(-1.0, 1.0, (1,)), Discrete(3)])
)


def nested(**parts):
    return {"camera": np.zeros((2, 3), np.uint8), "speed": (np.zeros(1, np.float32), 1)} | parts


@pytest.mark.parametrize(
    ("space", "obs", "words"),
    [
        (FLAT, np.zeros(3), ["shape (3,)", "(4,)", "Box(-1.0, 1.0, (4,), float32)"]),
        (FLAT, np.zeros((2, 2, 4)), ["shape (2, 2, 4)", "[N, …]"]),
        (FLAT, 3.0, ["shape ()", "(4,)"]),
        (FLAT, [0, 0, np.nan, 0], ["holds nan"]),
        (FLAT, [[0, 0, 0, 0], [0, 0, -np.inf, 0]], ["holds -inf"]),
        (FLAT, None, ["no numbers", "Box(-1.0, 1.0, (4,), float32)"]),
        (FLAT, "left", ["no numbers", "Box(-1.0, 1.0, (4,), float32)"]),
        (FLAT, {"speed": 1.0}, ["no numbers", "Box(-1.0, 1.0, (4,), float32)"]),
        (NESTED, {"speed": (np.zeros(1), 1)}, ["no numbers at 'camera'", "Dict("]),
        (NESTED, np.zeros(4), ["no numbers at 'camera'", "Dict("]),
        (NESTED, nested(speed=(np.zeros(1),)), ["no numbers at 'speed'/1", "Discrete(3)"]),
        (NESTED, nested(speed=(np.zeros(2), 1)), ["at 'speed'/0", "shape (2,)", "(1,)"]),
        (NESTED, nested(camera=np.zeros((5, 2, 3), np.uint8)), ["at 'speed'/0", "shape (1,)"]),
        (NESTED, nested(speed=(np.zeros(1), 0.5)), ["float64", "whole numbers"]),
    ],
)
def test_predict_says_what_is_wrong_and_what_the_policy_takes(space, obs, words):
    policy = hr.Policy(space, Discrete(2))
    with pytest.raises(ConfigError) as error:
        policy.predict(obs)
    for word in words:
        assert word in str(error.value)
    assert "\n" not in str(error.value)


def test_single_observations_and_batches_of_nested_spaces_are_told_apart():
    policy = hr.Policy(NESTED, Discrete(2))
    assert policy.predict(nested())[0].shape == ()
    batch = {"camera": np.zeros((5, 2, 3)).astype(np.uint8), "speed": (np.zeros((5, 1)), [1] * 5)}
    assert policy.predict(batch)[0].shape == (5,)


class Line(gymnasium.Env):
    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 1.0, True, False, {}


@pytest.mark.parametrize(
    ("obs", "action"),
    [
        (Box(-1.0, 1.0, (5,), np.float32), Discrete(2)),
        (NESTED, Discrete(2)),
        (FLAT, Discrete(3)),
        (FLAT, Box(-1.0, 1.0, (1,))),
    ],
)
def test_evaluate_refuses_another_environments_policy_and_names_both_spaces(obs, action):
    policy = hr.Policy(FLAT, Discrete(2))
    with pytest.raises(ConfigError) as error:
        hr.evaluate(policy, Line, 2, env_kwargs={"observation_space": obs, "action_space": action})
    ours, theirs = (FLAT, obs) if obs != FLAT else (Discrete(2), action)
    assert f"{ours}, the environment's is {theirs}" in str(error.value)


def test_evaluate_takes_an_environment_with_other_bounds():
    kwargs = {"observation_space": Box(-9.0, 9.0, (4,), np.float32), "action_space": Discrete(2)}
    found = hr.evaluate(hr.Policy(FLAT, Discrete(2)), Line, 3, env_kwargs=kwargs)
    assert found.returns == (1.0, 1.0, 1.0)
    assert found.lengths == (1, 1, 1)
    assert (found.mean, found.std, found.episodes) == (1.0, 0.0, 3)


@pytest.mark.parametrize("episodes", [0, -1, 1.5, True, None])
def test_evaluate_needs_a_number_of_episodes(episodes):
    with pytest.raises(ConfigError, match=rf"episodes={episodes!r} must be"):
        hr.evaluate(hr.Policy(FLAT, Discrete(2)), Line, episodes)


@pytest.mark.parametrize("observe", [lambda x: x[::-1], lambda x: x[..., ::-1], np.asfortranarray])
def test_predict_takes_arrays_of_any_strides(observe):
    space = Box(0, 255, (40, 40, 3), np.uint8)
    picture = np.random.default_rng(0).integers(0, 255, space.shape).astype(np.uint8)
    policy, view, first = Policy(space, Discrete(3), hr.Network()), observe(picture), np.ones(1)

    def params_of(x):
        inputs, core = inputs_of(policy, x[None], None, first, None, None)
        return policy.act(inputs, torch.ones(1, dtype=torch.bool), core)[0]

    assert torch.equal(params_of(view), params_of(view.copy("C")))
    policy.predict(view)
    policy.predict(np.stack([picture] * 2)[::-1])


def test_predict_takes_read_only_arrays_without_a_warning(recwarn):
    policy = Policy(Box(-9, 9, (4,)), Discrete(3), hr.Network())
    obs, mask = np.arange(4, dtype=np.float32)[::-1], np.array([1, 1, 0], bool)
    obs.flags.writeable = mask.flags.writeable = False
    policy.predict(obs, action_mask=mask[::-1])
    masked = Policy(Box(-9, 9, (4,)), Discrete(3), hr.Network(), info_mask=True)
    assert masked.predict(np.broadcast_to(obs, (5, 4)), action_mask=mask[::-1])[0].min() >= 1
    assert not recwarn.list

"""Identity environments for every action space: rewards, spaces, seeds."""

from __future__ import annotations

import json

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Text, Tuple
from gymnasium.utils.env_checker import check_env
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

import worlds as testing
from headrace.envs import make_vec
from headrace.errors import ConfigError
from headrace.ops import tree
from tests.envs.space_oracles import (
    CASES,
    NAMES,
    literal_reward,
    optimal,
    parts_of,
    spaces,
    target_of,
    to_action,
)
from worlds import (
    SpaceIdentityEnv,
    SpaceIdentityVectorEnv,
    named_action_space,
)


@examples(60)
@given(space=spaces, seed=st.integers(0, 1000))
def test_the_reward_is_the_mean_over_components_in_every_space(space, seed):
    envs = SpaceIdentityVectorEnv(3, space)
    space.seed(seed)
    obs, _ = envs.reset(seed=seed)
    assert envs.single_observation_space.contains(obs[0])
    for t in range(8):
        actions = [space.sample() for _ in range(3)]
        expected = [
            literal_reward(space, actions[i], to_action(space, obs[i].tolist())) for i in range(3)
        ]
        batch = tree.map_leaves(lambda *a: np.stack([np.asarray(x) for x in a]), *actions)
        obs, reward, terminated, truncated, _ = envs.step(batch)
        assert reward == pytest.approx(expected, abs=1e-6)
        assert terminated.all() == terminated.any() == (t == 7)
        assert not truncated.any()


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize(("name", "mask"), CASES)
def test_the_policy_that_does_what_it_sees_gets_the_best_return_and_is_never_masked(
    name, nested, mask
):
    kwargs = {"action_space": name, "nested": nested, "mask": mask, "episode_length": 5}
    json.dumps(kwargs)
    envs = make_vec(SpaceIdentityVectorEnv, 4, env_kwargs=kwargs)
    space = envs.single_action_space
    obs, _ = envs.reset(seed=3)
    total = np.zeros(4)
    for t in range(17):
        assert envs.observation_space.contains(obs)
        actions = optimal(space, target_of(obs))
        obs, reward, terminated, _, _ = envs.step(actions)
        total += reward
        assert (reward == (0.0 if t % 6 == 5 else 1.0)).all()  # fillers reward nothing
        assert terminated.all() == terminated.any() == (t % 6 == 4)
    assert (total == 15).all()


@pytest.mark.parametrize(("name", "mask"), CASES)
def test_the_vectorised_environment_equals_single_ones_step_for_step(name, mask):
    kwargs = {"action_space": name, "nested": True, "mask": mask}
    native = make_vec(SpaceIdentityVectorEnv, 3, "native", kwargs)
    loop = make_vec(SpaceIdentityEnv, 3, "sync", kwargs)
    assert native.single_observation_space == loop.single_observation_space
    assert native.single_action_space == loop.single_action_space
    ours, theirs = native.reset(seed=5), loop.reset(seed=5)
    for t in range(40):
        same = [tree.leaves(x) for x in (ours, theirs)]
        assert [str(x.dtype) for x in same[0]] == [str(x.dtype) for x in same[1]]
        for a, b in zip(*same, strict=True):
            assert np.array_equal(a, b)
        assert set(ours[-1]) == set(theirs[-1])
        if t == 20:
            ours, theirs = native.reset(), loop.reset()  # in the middle of an episode
            continue
        actions = optimal(native.single_action_space, target_of(ours[0]))
        ours, theirs = native.step(actions), loop.step(actions)


@pytest.mark.parametrize(
    ("name", "actions", "sentence"),
    [
        ("discrete", np.array([0, 4]), "is 4 in environment 1, not one of 0 … 3"),
        ("discrete", np.array([-1, 0]), "is -1 in environment 0, not one of 0 … 3"),
        ("discrete", np.array([0.0, 1.0]), "holds float64, not integers"),
        ("discrete", np.array([0]), r"action has shape \(1,\), not \(2,\)"),
        ("multibinary", np.full((2, 3), 2), "component 0 is 2 in environment 0, not one of 0 … 1"),
        ("box2d", np.zeros((2, 4)), r"has shape \(2, 4\), not \(2, 2, 2\)"),
        (
            "dict",
            {"arm": np.zeros((2, 2)), "grip": np.array([1, 0]), "lamps": np.zeros((2, 2), int)},
            "action at 'grip' component 0 is 0 in environment 1, not one of 1 … 3",
        ),
    ],
)
def test_an_action_outside_the_space_raises_and_is_named(name, actions, sentence):
    envs = SpaceIdentityVectorEnv(2, name)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=sentence):
        envs.step(actions)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (("multidiscret",), "action_space='multidiscret' is unknown.*Did you mean 'multidiscrete'"),
        ((Text(3),), r"action: Text\(.*has no targets; use Discrete"),
        ((Dict({"a": Tuple((Box(0, 1),))}),), r"action at 'a'/0: Box.*must contain \[-1, 1\]"),
        ((Box(0, 255, (2,), np.uint8),), "has no targets"),
        (
            ("discrete", "observation"),
            "mask='observation' is unknown; choose None, 'obs' or 'info'",
        ),
        (("box", "obs"), "nothing to mask in Box.*Discrete or MultiDiscrete part"),
        (("discrete", None, 0), "episode_length=0 must be at least 1"),
    ],
)
def test_a_wrong_argument_gets_one_sentence(args, sentence):
    with pytest.raises(ConfigError, match=sentence):
        SpaceIdentityEnv(*args)


def test_targets_masks_and_noise_follow_the_seed_and_change_at_every_step():
    def stream(seed: int) -> list[np.ndarray]:
        envs = SpaceIdentityVectorEnv(4, "tuple", "obs", nested=True)
        obs, _ = envs.reset(seed=seed)
        rows = [obs]
        for _ in range(30):
            rows.append(envs.step(optimal(envs.single_action_space, obs["target"]))[0])
            obs = rows[-1]
        return [np.stack(x) for x in zip(*(tree.leaves(r) for r in rows), strict=True)]

    first, again, other = stream(0), stream(0), stream(1)
    for a, b, c in zip(first, again, other, strict=True):
        assert np.array_equal(a, b)
        assert not np.array_equal(a, c)
        assert np.array_equal(a[:, 1:], c[:, :-1])  # environment i of seed s is i - 1 of s + 1
        assert not np.array_equal(a[:-1], a[1:])


@pytest.mark.parametrize("name", NAMES)
def test_named_spaces_are_of_the_kinds_that_they_name_and_new_each_time(name):
    space = named_action_space(name)
    assert space == named_action_space(name)
    assert space is not named_action_space(name)
    kinds = {type(leaf) for leaf, _ in parts_of(space, space.sample())}
    expected = {"discrete": Discrete, "multidiscrete": MultiDiscrete, "multibinary": MultiBinary}
    if name in expected:
        assert kinds == {expected[name]}
    assert isinstance(space, {"dict": Dict, "tuple": Tuple}.get(name, gymnasium.Space))
    assert name != "box2d" or len(space.shape) == 2


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_they_pass_gymnasiums_checker(name):
    check_env(SpaceIdentityEnv(name, nested=True), skip_render_check=True)


def test_the_package_exports_what_it_says():
    for name in testing.__all__:
        assert getattr(testing, name).__name__ == name

from __future__ import annotations

import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import headrace  # noqa: F401  registers the environments
from headrace.envs import make_vec
from headrace.errors import ConfigError
from headrace_ssa import SSAConjunctionEnv, SSAConjunctionVectorEnv
from tests.ssa.oracle import shy

ID = "headrace_ssa:headrace/SSAConjunction-v0"


# -- Gymnasium -------------------------------------------------------------------------------


def test_gymnasiums_checker_finds_nothing_to_warn_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ID).unwrapped)
        check_env(SSAConjunctionEnv(n_objects=1, horizon=50), skip_render_check=True)
        env = gymnasium.make(ID, n_objects=4, horizon=50)  # in wrappers that check every step
        env.reset(seed=0)
        while not env.step(env.action_space.sample())[2]:
            pass


def test_both_ids_make_their_environment():
    envs = gymnasium.make_vec(ID, 3, n_objects=4)
    assert isinstance(envs.unwrapped, SSAConjunctionVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    one = gymnasium.make(ID, n_objects=4)
    assert isinstance(one.unwrapped, SSAConjunctionEnv)
    assert envs.single_observation_space == one.observation_space
    assert envs.single_action_space == one.action_space == gymnasium.spaces.Discrete(7)
    assert one.observation_space.shape == (8 + 8 * 4,)
    assert isinstance(make_vec(ID, 2).unwrapped, SSAConjunctionVectorEnv)


@pytest.mark.parametrize(("n_objects", "horizon"), [(1, 60), (20, 60), (2, 200)])
def test_what_is_seen_lies_in_its_spaces(n_objects, horizon):
    envs = SSAConjunctionVectorEnv(20, n_objects, horizon)
    rng = np.random.default_rng(0)
    obs, infos = envs.reset(seed=0)
    num_ended = 0
    for _ in range(horizon + 5):
        assert envs.observation_space.contains(obs)
        mask = infos["action_mask"]
        assert mask.dtype == np.int8
        assert mask.shape == (20, n_objects + 3)
        assert (mask[:, 0] == 1).all()
        obs, reward, terminated, truncated, infos = envs.step(shy(rng, mask))
        assert reward.dtype == np.float64
        assert terminated.dtype == truncated.dtype == bool
        assert reward.shape == terminated.shape == truncated.shape == (20,)
        num_ended += terminated.sum()
    assert num_ended >= 20


@pytest.mark.parametrize(
    ("wrong", "nearest"),
    [({"n_objects": 0}, "1"), ({"n_objects": -3}, "1"), ({"horizon": 3}, None)],
)
def test_a_bad_setting_is_an_error_that_names_the_nearest_good_one(wrong, nearest):
    name, value = next(iter(wrong.items()))
    for make in (SSAConjunctionEnv, lambda **kw: SSAConjunctionVectorEnv(2, **kw)):
        with pytest.raises(ConfigError, match=f"{name}={value}") as error:
            make(**wrong)
        if nearest:
            assert nearest in str(error.value)


def test_every_object_comes_near_within_the_shortest_episode():
    with pytest.raises(ConfigError) as error:
        SSAConjunctionVectorEnv(1, horizon=1)
    shortest = int(str(error.value).split("nearest: ")[1].rstrip(")"))
    envs = SSAConjunctionVectorEnv(50, n_objects=5, horizon=shortest)
    envs.reset(seed=0)
    assert (envs.scene.tca > 0).all()
    assert (envs.scene.tca <= shortest).all()


# -- seeds -----------------------------------------------------------------------------------


def first(envs, **reset):
    return envs.reset(**reset)[0]


def test_a_seed_is_that_of_the_constructor_or_of_the_reset():
    given = first(SSAConjunctionVectorEnv(3, 2), seed=5)
    assert np.array_equal(first(SSAConjunctionVectorEnv(3, 2, seed=5)), given)
    assert np.array_equal(first(SSAConjunctionVectorEnv(3, 2, seed=9), seed=5), given)
    listed = first(SSAConjunctionVectorEnv(3, 2), seed=[5, 6, 7])
    assert np.array_equal(listed, given)
    swapped = first(SSAConjunctionVectorEnv(3, 2), seed=[7, 6, 5])
    assert np.allclose(swapped, given[::-1], rtol=0, atol=1e-6)
    single = SSAConjunctionEnv(2, seed=6)
    assert np.allclose(single.reset()[0], given[1], rtol=0, atol=1e-6)
    assert not np.allclose(single.reset()[0], given[1], atol=1e-3)  # its generator went on


def test_without_a_seed_generators_go_on_and_are_their_own():
    envs, twin = SSAConjunctionVectorEnv(3, 2), SSAConjunctionVectorEnv(3, 2)
    start, _ = first(envs, seed=1), first(twin, seed=1)
    again = first(envs)
    assert not np.allclose(again, start, atol=1e-3)
    assert np.array_equal(first(twin), again)
    fresh = [first(SSAConjunctionVectorEnv(3, 2)) for _ in range(2)]
    assert not np.allclose(fresh[0], fresh[1], atol=1e-3)
    assert len(np.unique(fresh[0], axis=0)) == 3


def test_none_in_a_list_of_seeds_goes_on_with_that_generator():
    envs, twin = SSAConjunctionVectorEnv(2, 2), SSAConjunctionVectorEnv(2, 2)
    first(envs, seed=1), first(twin, seed=1)
    mixed, going_on = first(envs, seed=[None, 8]), first(twin)
    assert np.allclose(mixed[0], going_on[0], rtol=0, atol=1e-6)
    assert not np.allclose(mixed[1], going_on[1], atol=1e-3)


def test_as_many_seeds_as_environments_are_needed():
    with pytest.raises(ValueError, match="2 seeds"):
        SSAConjunctionVectorEnv(3, 2).reset(seed=[1, 2])


# -- rows ------------------------------------------------------------------------------------


def test_a_row_plays_the_same_in_another_row_and_another_batch_size():
    rng = np.random.default_rng(3)
    wishes = rng.random((110, 6)) * [1, 1, 1, 1, 0.9, 0.9]

    def stream(num_envs, row):
        envs = SSAConjunctionVectorEnv(num_envs, n_objects=3, horizon=50)
        obs, infos = envs.reset(seed=42 - row)
        seen, paid = [obs[row]], []
        for wish in wishes:
            others = rng.integers(0, 6, size=num_envs)  # new ones each time
            others[row] = (wish * infos["action_mask"][row]).argmax()
            obs, reward, terminated, _, infos = envs.step(others)
            seen.append(obs[row])
            paid.append((reward[row], terminated[row], *infos["action_mask"][row]))
        return np.array(seen), np.array(paid, float)

    obs, paid = stream(1, 0)
    assert paid[:, 1].sum() >= 2
    for num_envs, row in ((8, 0), (8, 5), (33, 32)):
        other_obs, other_paid = stream(num_envs, row)
        assert np.allclose(other_obs, obs, rtol=0, atol=1e-6)
        assert np.allclose(other_paid, paid, rtol=0, atol=1e-9)


def test_what_was_returned_is_not_changed_by_later_steps():
    envs = SSAConjunctionVectorEnv(4, 2, horizon=45)
    obs, infos = envs.reset(seed=0)
    kept, mask = obs.copy(), infos["action_mask"].copy()
    first_step = envs.step(np.full(4, 3))
    copies = [x.copy() for x in first_step[:4]]
    for _ in range(60):
        envs.step(np.full(4, 4))
    assert np.array_equal(obs, kept)
    assert np.array_equal(infos["action_mask"], mask)
    for x, y in zip(first_step[:4], copies, strict=True):
        assert np.array_equal(x, y)


def test_there_is_nothing_to_draw_or_step_before_a_reset():
    env = gymnasium.make(ID, render_mode="rgb_array").unwrapped
    for call in (env.render, lambda: env.step(0)):
        with pytest.raises(RuntimeError, match="call reset"):
            call()
    env.reset(seed=0)
    assert env.render().shape == (320, 800, 3)
    while not env.step(0)[2]:
        pass
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)

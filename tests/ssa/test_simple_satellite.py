from __future__ import annotations

import warnings
from functools import cache

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.envs import make_vec
from headrace.errors import ConfigError
from headrace_ssa import SimpleSatelliteEnv, SimpleSatelliteVectorEnv
from headrace_ssa.simple import optimal_return

ID = "headrace_ssa:headrace/SimpleSatellite-v0"
STALENESS, PRIORITY = slice(1, 6), slice(6, 11)


def play(env, actions, seed=None):
    """Return the transitions of one episode: obs before, reward, obs after, terminated."""
    obs, _ = env.reset(seed=seed)
    steps = []
    for action in actions:
        after, reward, terminated, truncated, info = env.step(action)
        assert not truncated
        assert info == {}
        steps.append((obs, reward, after, terminated))
        obs = after
    return steps


# -- scalar and vector versions --------------------------------------------------------------


def loop(num_envs):
    return SyncVectorEnv([SimpleSatelliteEnv] * num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)


def assert_same(a, b):
    for x, y in zip(a, b, strict=True):
        assert x.dtype == y.dtype
        assert np.array_equal(x, y)


def test_a_thousand_episodes_are_bit_for_bit_those_of_single_environments():
    native, single = SimpleSatelliteVectorEnv(250), loop(250)
    rng = np.random.default_rng(0)
    assert_same(native.reset(seed=7)[:1], single.reset(seed=7)[:1])
    num_ended = 0
    for _ in range(4 * 21 + 5):
        actions = rng.integers(5, size=250)
        ours, theirs = native.step(actions), single.step(actions)
        assert_same(ours[:4], theirs[:4])
        assert ours[4] == theirs[4] == {}
        num_ended += ours[2].sum()
    assert num_ended == 1000
    # A reset without seed in mid-episode continues each generator.
    assert_same(native.reset()[:1], single.reset()[:1])


def test_a_list_of_seeds_gives_each_environment_its_own_and_none_goes_on():
    native, single = SimpleSatelliteVectorEnv(3), loop(3)
    for seed in ([5, 900, 5], [None, 4, None], None, 11):
        obs = native.reset(seed=seed)[0]
        assert_same([obs], [single.reset(seed=seed)[0]])
        actions = np.array([0, 1, 4])
        assert_same(native.step(actions)[:4], single.step(actions)[:4])
    same, _ = native.reset(seed=[8, 9, 8])
    assert np.array_equal(same[0], same[2])
    assert not np.array_equal(same[0], same[1])
    with pytest.raises(ValueError, match="2 seeds were given for 3"):
        native.reset(seed=[1, 2])


def test_without_any_seed_environments_differ():
    obs, _ = SimpleSatelliteVectorEnv(4).reset()
    assert len(np.unique(obs[:, 6])) == 4


def test_a_row_plays_the_same_in_another_row_and_another_batch_size():
    rng = np.random.default_rng(3)
    actions = rng.integers(5, size=60)

    def stream(num_envs, row, seed):
        envs = SimpleSatelliteVectorEnv(num_envs)
        rows = [envs.reset(seed=seed - row)[0][row]]
        for action in actions:
            others = rng.integers(5, size=num_envs)  # new ones each time
            others[row] = action
            obs, reward, terminated, *_ = envs.step(others)
            rows.append(np.concatenate([obs[row], [reward[row], terminated[row]]]))
        return np.concatenate(rows)

    alone = stream(1, 0, 42)
    for num_envs, row in ((8, 0), (8, 5), (33, 32)):
        assert np.array_equal(stream(num_envs, row, 42), alone)


def test_what_was_returned_is_not_changed_by_later_steps():
    envs = SimpleSatelliteVectorEnv(2)
    obs, _ = envs.reset(seed=0)
    kept = obs.copy()
    first = envs.step(np.array([0, 1]))
    copies = [x.copy() for x in first[:4]]
    for _ in range(25):
        envs.step(np.array([2, 2]))
    assert np.array_equal(obs, kept)
    assert_same(first[:4], copies)


# -- Gymnasium -------------------------------------------------------------------------------


def test_gymnasiums_checker_finds_nothing_to_warn_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(ID).unwrapped)
        check_env(SimpleSatelliteEnv(), skip_render_check=True)
        env = gymnasium.make(ID)  # in wrappers that check every step
        play(env, np.arange(20) % 5, seed=0)


def test_the_id_makes_the_native_vector_environment():
    envs = make_vec(ID, 3)
    assert isinstance(envs.unwrapped, SimpleSatelliteVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.single_observation_space == SimpleSatelliteEnv().observation_space
    assert isinstance(gymnasium.make(ID).unwrapped, SimpleSatelliteEnv)


@pytest.mark.parametrize("make", [SimpleSatelliteEnv, lambda c: SimpleSatelliteVectorEnv(1, c)])
def test_rllibs_env_config_is_accepted_without_effect(make):
    for empty in (None, {}):
        make(empty).reset(seed=0)
    with pytest.warns(UserWarning, match=r"config={'n_objects': 20} has no effect"):
        make({"n_objects": 20}).reset(seed=0)
    with pytest.raises(ConfigError, match="config=3 must be a dict or None"):
        make(3)


# -- the rules -------------------------------------------------------------------------------


@examples(60)
@given(st.lists(st.integers(0, 4), min_size=20, max_size=20), st.integers(0, 2**31 - 1))
def test_staleness_counts_the_steps_since_a_satellite_was_chosen(actions, seed):
    env = SimpleSatelliteEnv()
    steps = play(env, actions, seed)
    priorities = steps[0][0][PRIORITY]
    assert (priorities >= np.float32(0.1)).all()
    assert (priorities <= 1).all()
    for t, (before, reward, after, terminated) in enumerate(steps):
        assert env.observation_space.contains(after)
        since = [next((k for k in range(t + 1) if actions[t - k] == i), t + 1) for i in range(5)]
        assert np.allclose(after[STALENESS] * 20, since, atol=1e-5)
        assert np.isclose(after[0], (19 - t) / 20)
        assert np.array_equal(after[PRIORITY], priorities)
        age = before[STALENESS][actions[t]] * 20
        success = 10 * priorities[actions[t]] / (1 + age)
        assert reward == -0.5 or np.isclose(reward, success, rtol=1e-5)
        assert terminated == (t == 19)


def test_an_episode_begins_fresh_with_all_its_time():
    env = SimpleSatelliteEnv()
    play(env, [3] * 20, seed=1)
    obs, info = env.reset()
    assert obs.dtype == np.float32
    assert obs[:6].tolist() == [1, 0, 0, 0, 0, 0]
    assert info == {}


def test_four_fifths_of_the_observations_succeed_at_every_step_and_priorities_are_uniform():
    envs = SimpleSatelliteVectorEnv(20_000)
    obs, _ = envs.reset(seed=1)
    drawn = obs[:, PRIORITY].astype(float)
    assert drawn.mean() == pytest.approx(0.55, abs=0.005)
    assert drawn.std() == pytest.approx(0.9 / 12**0.5, abs=0.005)
    assert drawn.min() >= np.float32(0.1)
    assert np.abs(np.corrcoef(drawn, rowvar=False) - np.eye(5)).max() < 0.03
    success = np.stack([envs.step(np.full(20_000, 2))[1] > 0 for _ in range(20)])
    assert np.abs(success.mean(1) - 0.8).max() < 0.0125  # 4.4 standard errors
    assert np.abs(np.corrcoef(success) - np.eye(20)).max() < 0.04


# -- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize("action", [-1, 5, 2.0, None, "1", np.array([1])])
def test_a_wrong_action_is_an_error(action):
    env = SimpleSatelliteEnv()
    env.reset(seed=0)
    with pytest.raises(ValueError, match="must be a whole number from 0 to 4"):
        env.step(action)
    assert env.step(np.int64(4))[0][0] == np.float32(0.95)  # the wrong one counted as nothing


def test_the_vector_version_names_the_environment_of_a_wrong_action():
    envs = SimpleSatelliteVectorEnv(3)
    with pytest.raises(RuntimeError, match="reset"):
        envs.step(np.zeros(3, int))
    envs.reset(seed=0)
    for wrong in (-1, 5):
        with pytest.raises(ValueError, match=f"action={wrong} of environment 1 must be"):
            envs.step(np.array([0, wrong, 4]))
    for wrong in (np.zeros(2, int), np.zeros((3, 1), int), np.zeros(3)):
        with pytest.raises(ValueError, match="actions must be 3 whole numbers"):
            envs.step(wrong)
    assert (envs.step(np.array([0, 1, 4]))[0][:, 0] == np.float32(0.95)).all()


def test_a_step_without_an_episode_is_an_error():
    env = SimpleSatelliteEnv()
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)
    play(env, [0] * 20, seed=0)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step(0)


# -- the best return -------------------------------------------------------------------------


def best_by_recursion(priorities, num_steps):
    """Return the greatest expected return over all plans, step by step from the rules."""
    num = len(priorities)

    @cache
    def best(staleness, steps_left):
        if not steps_left:
            return 0.0
        values = []
        for i in range(num):
            after = tuple(0 if k == i else staleness[k] + 1 for k in range(num))
            expected = 0.8 * 10 * priorities[i] / (1 + staleness[i]) + 0.2 * -0.5
            values.append(expected + best(after, steps_left - 1))
        return max(values)

    return best((0,) * num, num_steps)


@examples(40)
@given(st.lists(st.floats(0.1, 1), min_size=1, max_size=4), st.integers(1, 7))
def test_the_best_return_is_that_of_dynamic_programming(priorities, num_steps):
    best = best_by_recursion(tuple(priorities), num_steps)
    assert optimal_return(priorities, num_steps) == pytest.approx(best, rel=1e-12)


def test_the_best_return_of_whole_episodes():
    for priorities in ((0.3, 0.9, 0.85), (0.5, 0.5, 0.5), (1.0, 0.99, 0.1)):
        best = best_by_recursion(priorities, 20)
        assert optimal_return(priorities) == pytest.approx(best, rel=1e-12)
    many = np.random.default_rng(0).uniform(0.1, 1, (200_000, 5))
    best = optimal_return(many)
    assert best.shape == (200_000,)
    assert np.allclose(best, 20 * (8 * many.max(1) - 0.1))
    assert best.mean() == pytest.approx(134.0, abs=0.2)


def test_observing_the_highest_priority_brings_the_best_return():
    envs = SimpleSatelliteVectorEnv(5_000)
    obs, _ = envs.reset(seed=0)
    best = optimal_return(obs[:, PRIORITY])
    total = np.zeros(5_000)
    for _ in range(20):
        obs, reward, *_ = envs.step(obs[:, PRIORITY].argmax(1))
        total += reward
    error = (total - best).std() / 5_000**0.5
    assert abs((total - best).mean()) < 4 * error < 1.5

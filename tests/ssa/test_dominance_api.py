"""OrbitalDominance for Gymnasium and PettingZoo."""

from __future__ import annotations

import itertools
import sys
import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from pettingzoo.test import parallel_api_test, parallel_seed_test

import headrace as hr
from headrace.errors import ConfigError
from headrace_ssa import OrbitalDominanceVectorEnv
from headrace_ssa.dominance import parallel_env, players, rules
from tests.tries import few_of

FEW = [*((name, "blue") for name in players.PLAYERS), ("random", "red"), ("pursuit", "red")]

ID = "headrace_ssa:headrace/OrbitalDominance-v0"


def first(envs, **reset):
    return envs.reset(**reset)[0]


# -- Gymnasium -------------------------------------------------------------------------------


def test_the_id_makes_games_of_two_columns_each():
    envs = gymnasium.make_vec(ID, 6, n=3)
    assert isinstance(envs.unwrapped, OrbitalDominanceVectorEnv)
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert envs.unwrapped.agents == ("blue", "red")
    assert envs.single_action_space == gymnasium.spaces.Discrete(1 + 3 * 6 + 9 + 3)
    obs, infos = envs.reset(seed=0)
    assert obs in envs.observation_space
    assert obs.dtype == np.float32
    assert infos["action_mask"].shape == (6, 31)
    assert infos["action_mask"].dtype == np.int8


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_envs": 3}, "num_envs=3 must be even.*nearest: 4"),
        ({"num_envs": 0}, "num_envs=0 .*nearest: 2"),
        ({"num_envs": -2}, "num_envs=-2 .*nearest: 2"),
        ({"num_envs": 2.0}, "num_envs=2.0 must be even.*nearest: 2"),
        ({"n": 1}, "n=1 must be at least 2 .nearest: 2"),
        ({"n": 3.5}, "n=3.5 must be a whole number of at least 2 .nearest: 4"),
        ({"n": "three"}, "n='three' must be a whole number of at least 2 .nearest: 2"),
        ({"horizon": float("inf")}, "horizon=inf must be a whole number .*nearest: 1"),
        ({"horizon": 0}, "horizon=0 must be at least 1 .nearest: 1"),
        ({"inclination": -1}, r"inclination=-1 must be None .*0 to 180.* \(nearest: 0\)"),
        ({"inclination": 181.0}, r"inclination=181.0 must be .* \(nearest: 180\)"),
        ({"inclination": float("nan")}, r"inclination=nan must be .* \(nearest: None\)"),
        ({"inclination": "98"}, r"inclination='98' must be .* \(nearest: None\)"),
    ],
)
def test_a_bad_setting_is_an_error_that_names_the_nearest_good_one(wrong, message):
    with pytest.raises(ConfigError, match=message):
        OrbitalDominanceVectorEnv(**{"num_envs": 2, **wrong})


@pytest.mark.parametrize("count", [19, 31, 45])
def test_the_number_of_satellites_follows_from_that_of_actions(count):
    assert rules.Actions.of(count).count == count


def test_actions_that_do_not_exist_and_steps_before_a_reset_are_errors():
    envs = OrbitalDominanceVectorEnv(4, render_mode="rgb_array")
    for call in (envs.render, lambda: envs.step(np.zeros(4, int))):
        with pytest.raises(RuntimeError, match="call reset"):
            call()
    envs.reset(seed=0)
    with pytest.raises(ValueError, match="action=19 of environment 2"):
        envs.step(np.array([0, 0, 19, 0]))
    with pytest.raises(ValueError, match="4 whole numbers"):
        envs.step(np.zeros(2, int))


def test_games_end_together_after_the_horizon_and_then_begin_anew():
    envs = OrbitalDominanceVectorEnv(4, horizon=5)
    start = first(envs, seed=0)
    for k in range(1, 13):
        obs, reward, terminated, truncated, infos = envs.step(np.zeros(4, int))
        assert terminated.tolist() == [k in (5, 11)] * 4
        assert not truncated.any()
        if k in (6, 12):  # a filler: it delivers the first observation of another game
            assert reward.tolist() == [0.0] * 4
            assert infos["points"].tolist() == [0.0] * 4
            assert obs[:, 0].tolist() == [1.0] * 4
            assert not np.allclose(obs, start, atol=1e-3)
    assert envs.scene.time.tolist() == [0, 0]
    assert envs.scene.score.tolist() == [[0, 0], [0, 0]]


def test_seeds_are_those_of_games():
    given = first(OrbitalDominanceVectorEnv(6), seed=5)
    assert np.array_equal(first(OrbitalDominanceVectorEnv(6, seed=5)), given)
    listed = first(OrbitalDominanceVectorEnv(6), seed=[5, 5, 6, 6, 7, 7])
    assert np.array_equal(listed, given)
    assert np.allclose(first(OrbitalDominanceVectorEnv(2), seed=6), given[2:4], atol=1e-6)
    assert not np.allclose(given[:2], given[2:4], atol=1e-3)
    with pytest.raises(ValueError, match="2 seeds were given for 6 columns"):
        OrbitalDominanceVectorEnv(6).reset(seed=[1, 2])
    envs, twin = OrbitalDominanceVectorEnv(2), OrbitalDominanceVectorEnv(2)
    first(envs, seed=1), first(twin, seed=1)
    assert np.array_equal(first(envs), first(twin))  # their generators continue


@pytest.mark.parametrize("inclination", [None, 97.8])
def test_a_game_plays_the_same_in_another_row_and_another_batch_size(inclination):
    rng = np.random.default_rng(3)
    actions = rng.integers(19, size=(70, 2))

    def stream(games, row):
        envs = OrbitalDominanceVectorEnv(2 * games, horizon=30, inclination=inclination)
        seen, paid = [envs.reset(seed=42 - row)[0][2 * row :][:2]], []
        for own in actions:
            others = rng.integers(19, size=(games, 2))  # new ones each time
            others[row] = own
            obs, reward, ended, *_ = envs.step(others.ravel())
            seen.append(obs[2 * row :][:2])
            paid.append([*reward[2 * row :][:2], ended[2 * row]])
        return np.array(seen), np.array(paid)

    obs, paid = stream(1, 0)
    assert paid[:, 2].sum() >= 2
    for games, row in ((8, 5), (33, 32)):
        other_obs, other_paid = stream(games, row)
        assert np.allclose(other_obs, obs, rtol=0, atol=1e-6)
        assert np.allclose(other_paid, paid, rtol=0, atol=1e-9)


def test_what_was_returned_is_not_changed_by_later_steps():
    envs = OrbitalDominanceVectorEnv(4, horizon=6)
    returned = [*envs.reset(seed=0)]
    returned += envs.step(np.array([8, 14, 3, 5]))
    arrays = [x for one in returned for x in (one.values() if isinstance(one, dict) else [one])]
    kept = [x.copy() for x in arrays]
    for _ in range(20):
        envs.step(np.array([1, 2, 3, 18]))
    assert all(np.array_equal(x, y) for x, y in zip(arrays, kept, strict=True))


def test_each_game_is_drawn_twice_once_for_each_column():
    envs = OrbitalDominanceVectorEnv(4, render_mode="rgb_array")
    envs.reset(seed=0)
    for _ in range(4):
        envs.step(np.array([rules.Actions(2).first_point, 0, 3, 0]))
    frames = envs.render()
    assert [frame.shape for frame in frames] == [(400, 800, 3)] * 4
    assert np.array_equal(frames[0], frames[1])
    assert not np.array_equal(frames[1], frames[2])
    assert OrbitalDominanceVectorEnv(2).render() is None


# -- one player ------------------------------------------------------------------------------


def test_every_id_of_the_package_makes_a_single_environment():
    ids = [name for name in gymnasium.registry if name.startswith("headrace/")]
    assert len(ids) == 3
    for name in ids:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            env = gymnasium.make(name)  # in wrappers that check every step
            check_env(gymnasium.make(name).unwrapped, skip_render_check=True)
        env.reset(seed=0)
        assert len(env.step(env.action_space.sample())) == 5


@pytest.mark.parametrize(
    ("opponent", "side"), few_of(list(itertools.product(players.PLAYERS, ["blue", "red"])), FEW)
)
def test_one_player_plays_the_games_of_the_vector_environment(side, opponent):
    rules = {"n": 3, "horizon": 12, "inclination": 51.6}
    env = gymnasium.make(ID, opponent=opponent, side=side, render_mode="rgb_array", **rules)
    games, own = OrbitalDominanceVectorEnv(2, **rules), ("blue", "red").index(side)
    takes = {"random": {"seed": 3}, "hold": {}, "tracker": {}}
    other = players.PLAYERS[opponent](**takes.get(opponent, {"inclination": 51.6}))
    obs, info = env.reset(seed=3)
    rows, infos = games.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(12):
        assert np.array_equal(obs, rows[own])
        assert np.array_equal(info["action_mask"], infos["action_mask"][own])
        actions = np.empty(2, int)
        actions[own] = rng.integers(31)
        actions[1 - own] = other(rows[[1 - own]], infos["action_mask"][[1 - own]])[0]
        obs, reward, terminated, _, info = env.step(actions[own])
        rows, rewards, ended, _, infos = games.step(actions)
        assert (reward, terminated) == (rewards[own], ended[own])
    assert terminated
    assert env.render().shape == (400, 800, 3)


def test_the_settings_of_one_player_are_checked():
    with pytest.raises(ConfigError, match=r"opponent='pursit' is unknown.*Did you mean 'pursuit'"):
        gymnasium.make(ID, opponent="pursit")
    with pytest.raises(ConfigError, match="side='green' is unknown; choose blue, red"):
        gymnasium.make(ID, side="green")
    with pytest.raises(RuntimeError, match="call reset"):
        gymnasium.make(ID).unwrapped.step(0)


def test_training_never_takes_the_single_environment_of_a_game():
    assert hr.make_vec(ID, 1).num_envs == 2
    with pytest.raises(ConfigError, match=r"'sync' can't make .* a game of blue, red, and the"):
        hr.make_vec(ID, 1, "sync")
    with pytest.raises(ConfigError, match="a game of blue, red, and the"):
        hr.make_vec(ID, 1, wrappers=['TimeLimit:{"max_episode_steps":3}'])


# -- PettingZoo ------------------------------------------------------------------------------


def test_pettingzoos_tests_pass():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(parallel_env(horizon=20), num_cycles=100)
        parallel_seed_test(lambda **kw: parallel_env(horizon=20, **kw), num_cycles=30)
    env = parallel_env(render_mode="rgb_array")
    env.reset(seed=0)
    assert env.render().shape == (400, 800, 3)


@pytest.mark.parametrize("inclination", [None, 51.6])
def test_it_plays_the_games_of_the_vector_environment(inclination):
    rules = {"n": 3, "horizon": 15, "inclination": inclination}
    env, games = parallel_env(**rules), OrbitalDominanceVectorEnv(2, **rules)
    obs, infos = env.reset(seed=3)
    rows, told = games.reset(seed=3)
    rng = np.random.default_rng(0)
    for _ in range(15):
        for i, agent in enumerate(env.possible_agents):
            assert np.array_equal(obs[agent], rows[i])
            assert np.array_equal(infos[agent]["action_mask"], told["action_mask"][i])
        actions = rng.integers(31, size=2)
        obs, rewards, ended, _, infos = env.step(dict(zip(env.agents, actions, strict=True)))
        rows, reward, terminated, _, told = games.step(actions)
        assert list(rewards.values()) == reward.tolist()
        assert list(ended.values()) == terminated.tolist()
    assert env.agents == []
    with pytest.raises(RuntimeError, match="call reset"):
        env.step({"blue": 0, "red": 0})


def test_without_pettingzoo_the_install_line_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "headrace_ssa.dominance.parallel", raising=False)
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[games\]'"):
        parallel_env()

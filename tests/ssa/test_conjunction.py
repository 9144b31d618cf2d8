from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils import seeding

from headrace_ssa import SSAConjunctionEnv, SSAConjunctionVectorEnv, scene
from tests.ssa.oracle import SlowGame, shy

COUNTS = ("collisions", "avoided", "false_alarms")


@pytest.fixture
def crowded(monkeypatch):
    """Short episodes with many close calls."""
    monkeypatch.setattr(scene, "FIRST_APPROACH", 6)
    monkeypatch.setattr(scene, "LENGTH_M", 150.0)


def counts_of(infos, row=0):
    return tuple(int(infos[name][row]) for name in COUNTS)


# -- the rules, transcribed ------------------------------------------------------------------


def replay(seed, n_objects, horizon, num_envs, num_steps):
    """Play the game and its literal version; return the counts of all events."""
    envs = SSAConjunctionVectorEnv(num_envs, n_objects, horizon)
    rngs = [seeding.np_random(seed + i)[0] for i in range(num_envs)]

    def fresh(i):
        return SlowGame(scene.draw([rngs[i]], n_objects, horizon), horizon)

    slow = [fresh(i) for i in range(num_envs)]
    obs, infos = envs.reset(seed=seed)
    ended = [False] * num_envs
    rng, happened = np.random.default_rng(seed), np.zeros(4, int)
    for _ in range(num_steps):
        for i, one in enumerate(slow):
            assert np.allclose(obs[i], one.observation(), rtol=0, atol=1e-6)
            assert infos["action_mask"][i].tolist() == [int(x) for x in one.mask()]
        actions = shy(rng, infos["action_mask"])
        obs, reward, terminated, truncated, infos = envs.step(actions)
        assert not truncated.any()
        for i in range(num_envs):
            if ended[i]:
                slow[i], wanted = fresh(i), (0.0, False, (0, 0, 0))
            else:
                wanted = slow[i].step(int(actions[i]))
            assert reward[i] == pytest.approx(wanted[0], abs=1e-9)
            assert (terminated[i], counts_of(infos, i)) == wanted[1:]
            ended[i] = wanted[1]
            happened += (*wanted[2], wanted[1])
    return happened


def test_random_episodes_are_those_of_a_slow_transcription_of_the_rules(crowded):
    happened = replay(seed=3, n_objects=5, horizon=30, num_envs=4, num_steps=120)
    assert (happened >= (5, 5, 5, 14)).all(), happened


def test_so_are_whole_episodes_as_they_are_drawn_by_default():
    happened = replay(seed=8, n_objects=4, horizon=90, num_envs=2, num_steps=95)
    assert happened[3] >= 2


# -- scalar and vector versions --------------------------------------------------------------


@pytest.mark.parametrize(
    "num_envs",
    [pytest.param(3, id="short"), pytest.param(60, id="a thousand", marks=pytest.mark.full)],
)
def test_single_environments_play_the_same_episodes(crowded, num_envs):
    many = SSAConjunctionVectorEnv(num_envs, n_objects=5, horizon=20)
    single = [SSAConjunctionEnv(n_objects=5, horizon=20) for _ in range(num_envs)]
    obs, infos = many.reset(seed=5)
    for i, one in enumerate(single):
        alone, info = one.reset(seed=5 + i)
        assert np.array_equal(alone, obs[i])
        assert np.array_equal(info["action_mask"], infos["action_mask"][i])
    ended, num_ended, rng = np.zeros(num_envs, bool), 0, np.random.default_rng(0)
    for _ in range(18 * 20):
        actions = shy(rng, infos["action_mask"])
        obs, reward, terminated, _, infos = many.step(actions)
        for i, one in enumerate(single):
            if ended[i]:
                (alone, info), result = one.reset(), (0.0, False, False)
            else:
                alone, *result, info = one.step(actions[i])
            assert np.allclose(alone, obs[i], rtol=0, atol=1e-6)
            assert np.array_equal(info["action_mask"], infos["action_mask"][i])
            assert tuple(result) == pytest.approx((reward[i], terminated[i], False), abs=1e-9)
            assert counts_of(infos, i) == tuple(info[name] for name in COUNTS)
        ended = terminated
        num_ended += terminated.sum()
    assert num_ended >= 16 * num_envs

"""Rules of SSAConjunction in manually edited scenes."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa import SSAConjunctionVectorEnv
from headrace_ssa.conjunction import AVOIDED, BURN, COLLISION, FALSE_ALARM, MAX_BURNS
from headrace_ssa.outlook import RADIUS_M

N, HORIZON = 3, 60
WAIT, FORWARDS, BACKWARDS = 0, N + 1, N + 2


def staged(*misses, tca=(45, 50, 55)):
    """Return an episode without uncertainty: objects pass at these misses (m)."""
    envs = SSAConjunctionVectorEnv(1, N, HORIZON)
    envs.reset(seed=0)
    at = envs.scene
    for error in (at.path, at.offset, at.own_error, at.noise):
        error[:] = 0.0
    at.tca[0] = tca
    at.miss[0] = 50_000.0  # irrelevant to all
    for k, miss in enumerate(misses):
        at.miss[0, k] = miss
    envs.step(np.array([WAIT]))  # so that the player sees the edited scene
    return envs


def play(envs, *actions):
    """Return rewards and sums of the counts until the end; waits after these actions."""
    rewards, counts = [], np.zeros(3, int)
    for k in range(HORIZON):
        action = actions[k] if k < len(actions) else WAIT
        _, reward, terminated, _, infos = envs.step(np.array([action]))
        rewards.append(float(reward[0]))
        counts += [int(infos[x][0]) for x in ("collisions", "avoided", "false_alarms")]
        if terminated[0]:
            break
    return rewards, counts.tolist()


def test_nothing_happens_where_nothing_comes_near():
    rewards, counts = play(staged())
    assert rewards == [0.0] * (HORIZON - 1)
    assert counts == [0, 0, 0]


@pytest.mark.parametrize(("miss", "hits"), [(RADIUS_M - 0.01, True), (RADIUS_M + 0.01, False)])
def test_a_collision_is_a_miss_shorter_than_the_radius_and_ends_the_episode(miss, hits):
    rewards, counts = play(staged((0.6 * miss, -0.8 * miss)))
    assert len(rewards) == (44 if hits else HORIZON - 1)
    assert rewards[43] == (COLLISION if hits else 0.0)
    assert counts == [int(hits), 0, 0]


def test_two_collisions_at_once_are_one():
    rewards, counts = play(staged((0.0, 0.0), (10.0, 0.0), tca=(45, 45, 55)))
    assert rewards[-1] == COLLISION
    assert counts == [1, 0, 0]


@pytest.mark.parametrize("action", [FORWARDS, BACKWARDS])
def test_a_burn_in_time_avoids_a_collision(action):
    rewards, counts = play(staged((0.0, 0.0)), action)
    assert rewards[0] == BURN
    assert rewards[43] == AVOIDED
    assert sum(rewards) == BURN + AVOIDED
    assert counts == [0, 1, 0]


def test_burning_there_and_back_at_once_leaves_the_collision():
    rewards, counts = play(staged((0.0, 0.0)), FORWARDS, BACKWARDS)
    assert rewards[:2] == [BURN, BURN]
    assert rewards[-1] == COLLISION
    assert counts == [1, 0, 0]


def test_each_burn_for_the_sake_of_a_harmless_object_is_a_false_alarm_told_as_it_passes():
    envs = staged((150.0, 0.0))
    assert envs.outlook.listed[0, 0] == 0
    rewards, counts = play(envs, FORWARDS, WAIT, FORWARDS)
    assert rewards[:3] == [BURN, 0.0, BURN]
    assert rewards[43] == 2 * FALSE_ALARM
    assert sum(rewards) == 2 * BURN + 2 * FALSE_ALARM
    assert counts == [0, 0, 2]


def test_an_alarm_is_that_of_the_most_dangerous_object_and_no_other():
    envs = staged((1_000.0, 800.0), (20.0, 0.0))
    assert envs.outlook.listed[0, 0] == 1
    rewards, counts = play(envs, FORWARDS)
    assert sum(rewards) == BURN + AVOIDED
    assert rewards[48] == AVOIDED
    assert counts == [0, 1, 0]


def test_without_any_danger_the_alarm_is_that_of_the_next_object():
    rewards, counts = play(staged(), *[WAIT] * 46, FORWARDS)
    assert rewards[46] == BURN
    assert rewards[48] == FALSE_ALARM  # the first object had passed already
    assert counts == [0, 0, 1]


def test_a_burn_can_bring_a_collision_about():
    envs = staged()
    envs.scene.miss[0, 0] = envs.outlook.pushed[:, 0, 0]
    envs.scene.miss[0, 0] += 5.0
    rewards, counts = play(envs, FORWARDS)
    assert rewards[-1] == COLLISION + FALSE_ALARM
    assert len(rewards) == 44
    assert counts == [1, 0, 1]


def test_burns_are_counted_and_then_forbidden():
    envs = staged((150.0, 0.0))
    for left in range(MAX_BURNS - 1, -1, -1):
        obs, reward, _, _, infos = envs.step(np.array([FORWARDS]))
        assert reward[0] == BURN
        assert obs[0, 1] == np.float32(left / MAX_BURNS)
        assert infos["action_mask"][0, -2:].tolist() == [int(left > 0)] * 2
    orbit, shift = envs.scene.elements.a.copy(), envs.shift.copy()
    assert envs.step(np.array([BACKWARDS]))[1][0] == 0.0
    assert np.array_equal(envs.scene.elements.a, orbit)
    assert np.array_equal(envs.shift, shift)


def test_nobody_burns_once_all_have_passed():
    envs = staged(tca=(41, 42, 43))
    for _ in range(41):
        infos = envs.step(np.array([WAIT]))[-1]
        assert infos["action_mask"][0, -1] == 1
    obs, *_, infos = envs.step(np.array([WAIT]))
    assert infos["action_mask"][0].tolist() == [1] + [0] * (N + 2)
    assert (obs[0, 2:] == 0).all()
    assert envs.step(np.array([FORWARDS]))[1][0] == 0.0


def test_a_forbidden_action_is_waiting():
    horizon, num_envs = 45, 30
    twins = [SSAConjunctionVectorEnv(num_envs, N, horizon) for _ in range(2)]
    rng, tried = np.random.default_rng(0), 0
    (obs, infos), _ = (envs.reset(seed=1) for envs in twins)
    for _ in range(2 * horizon):
        mask = infos["action_mask"].astype(bool)
        actions = rng.integers(0, N + 3, num_envs)
        rows = np.arange(num_envs)
        forbidden = ~mask[rows, actions]
        tried += forbidden.sum()
        first = twins[0].step(actions)
        second = twins[1].step(np.where(forbidden, WAIT, actions))
        for x, y in zip(first[:4], second[:4], strict=True):
            assert np.array_equal(x, y)
        obs, infos = first[0], first[-1]
        assert np.isfinite(obs).all()
    assert tried > 500


def test_a_look_sharpens_what_is_known_and_then_it_fades():
    envs = SSAConjunctionVectorEnv(40, N, HORIZON)
    _, infos = envs.reset(seed=2)
    rows = np.flatnonzero(infos["action_mask"][:, 1])
    assert len(rows) >= 3
    objects = envs.outlook.listed[rows, 0]
    before = envs.outlook.along_m[rows, objects]
    envs.step(np.where(infos["action_mask"][:, 1], 1, WAIT))
    after = envs.outlook.along_m[rows, objects]
    assert (after < 0.25 * before).all()
    envs.step(np.full(40, WAIT))
    assert (envs.outlook.along_m[rows, objects] > after).all()


@pytest.mark.parametrize("wrong", [-1, N + 3])
def test_an_action_out_of_range_is_an_error(wrong):
    envs = SSAConjunctionVectorEnv(2, N, HORIZON)
    envs.reset(seed=0)
    with pytest.raises(ValueError, match=f"{N + 2}"):
        envs.step(np.array([0, wrong]))

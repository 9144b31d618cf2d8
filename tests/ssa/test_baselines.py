from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa import SSAConjunctionVectorEnv, baselines
from headrace_ssa import conjunction as game
from headrace_ssa.outlook import FEATURES, GLOBALS


def shown(risks, after, back):
    """Return an observation ``[1, 8 + 8 n]`` of objects with these risks: now and after burns."""
    obs = np.zeros((1, GLOBALS + FEATURES * len(risks)), np.float32)
    numbers = obs[0, GLOBALS:].reshape(-1, FEATURES)
    for k, values in enumerate(zip(risks, after, back, strict=True)):
        numbers[k, 2:5] = [1 + np.log10(max(p, 1e-8)) / 8 for p in values]
    return obs


def allowed(looks, burns=True):
    return np.array([[1, *looks, burns, burns]], np.int8)


# -- reading an observation ------------------------------------------------------------------


def test_risks_are_read_off_the_observation():
    envs = SSAConjunctionVectorEnv(8, n_objects=6, horizon=80)
    obs, _ = envs.reset(seed=0)
    for _ in range(80):
        at = envs.outlook
        rows = np.arange(8)[:, None]
        want = at.risks[:, rows, at.listed] * at.coming[rows, at.listed]
        got = baselines._risks(obs)
        real = want > 1e-7
        assert np.allclose(got[real], want[real], rtol=1e-5, atol=0)
        assert (got[~real] < 2e-7).all()
        obs, *_ = envs.step(np.zeros(8, int))


def test_a_burn_is_worth_what_it_changes_less_what_it_costs():
    now, after, back = [0.6, 0.1], [0.05, 0.2], [0.7, 0.02]
    values = baselines.burn_values(shown(now, after, back))[0]
    costs = game.BURN + game.FALSE_ALARM * (1 - 0.6)
    gain = game.AVOIDED - game.COLLISION
    assert values[0] == pytest.approx(0.55 * gain + 0.1 * game.COLLISION + costs, rel=1e-4)
    assert values[1] == pytest.approx(0.08 * gain + 0.1 * game.COLLISION + costs, rel=1e-4)


# -- greedy ----------------------------------------------------------------------------------


def test_greedy_burns_only_where_that_is_worth_something_and_with_the_better_sign():
    act, mask = baselines.greedy(), allowed([1, 1])
    forwards, backwards = 3, 4
    assert act(shown([0.5, 0.1], [0.01, 0.1], [0.2, 0.1]), mask) == forwards
    assert act(shown([0.5, 0.1], [0.2, 0.1], [0.01, 0.1]), mask) == backwards
    # The burn that helps against one object brings another one nearer.
    assert act(shown([0.5, 0.1], [0.01, 0.9], [0.2, 0.1]), mask) == backwards
    # What it changes is less than what it costs: 110 * 0.08 = 8.8 of 1 + 8 * 0.9 = 8.2.
    assert act(shown([0.1, 0.0], [0.02, 0.0], [0.1, 0.0]), mask) == forwards
    assert act(shown([0.1, 0.0], [0.03, 0.0], [0.1, 0.0]), mask) == 1
    # No burns are left.
    assert act(shown([0.5, 0.1], [0.01, 0.1], [0.2, 0.1]), allowed([1, 1], False)) == 1


def test_greedy_looks_at_the_most_dangerous_of_those_in_sight():
    act = baselines.greedy()
    obs = shown(*[[0.01, 0.03, 0.02]] * 3)
    for looks, action in (([1, 1, 1], 2), ([1, 0, 1], 3), ([1, 0, 0], 1), ([0, 0, 0], 0)):
        assert act(obs, allowed(looks)) == action


def test_each_row_is_its_own():
    act = baselines.greedy()
    rows = [
        (shown([0.5, 0.1], [0.01, 0.1], [0.2, 0.1]), allowed([0, 1])),
        (shown([0.01, 0.02], [0.01, 0.02], [0.01, 0.02]), allowed([1, 0])),
        (shown([0.0, 0.0], [0.0, 0.0], [0.0, 0.0]), allowed([0, 0])),
    ]
    obs, mask = (np.concatenate(x) for x in zip(*rows, strict=True))
    assert act(obs, mask).tolist() == [3, 1, 0]


# -- the others ------------------------------------------------------------------------------


def test_round_robin_looks_at_all_that_is_in_sight_in_turn():
    act, known = baselines.round_robin(), [0.3, 0.5, 0.4, 0.2]
    looks = []
    for _ in range(8):
        obs = shown(*[[0.0] * 4] * 3)
        obs[0, GLOBALS:].reshape(-1, FEATURES)[:, 5] = known
        looks.append(int(act(obs, allowed([1, 1, 1, 1]))[0]))
        known[looks[-1] - 1] = 0.0
        known = [k + 0.01 for k in known]  # it fades
    assert looks == [2, 3, 1, 4] * 2
    obs[0, GLOBALS:].reshape(-1, FEATURES)[:, 5] = [0.4, 0.1, 0.3, 0.2]
    assert act(obs, allowed([0, 1, 0, 1])) == 4
    assert act(obs, allowed([0, 0, 0, 0])) == 0
    dangerous = shown([0.5, 0, 0, 0], [0.01, 0, 0, 0], [0.2, 0, 0, 0])
    assert act(dangerous, allowed([1, 1, 1, 1])) == 5


def test_random_takes_every_allowed_action_alike_and_no_other():
    act = baselines.random_player(seed=1)
    mask = np.repeat(allowed([1, 0, 1, 0], False), 30_000, axis=0)
    taken = np.bincount(act(np.zeros((30_000, 33)), mask), minlength=7) / 30_000
    assert taken[[2, 4, 5, 6]].tolist() == [0, 0, 0, 0]
    assert np.abs(taken[[0, 1, 3]] - 1 / 3).max() < 4 * (2 / 9 / 30_000) ** 0.5
    again = baselines.random_player(seed=1)(np.zeros((30_000, 33)), mask)
    other = baselines.random_player(seed=2)(np.zeros((30_000, 33)), mask)
    assert not np.array_equal(again, other)


def test_greedy_does_better_than_waiting_and_than_random_actions():
    returns = {}
    players = {
        "wait": lambda obs, mask: np.zeros(len(obs), int),
        "random": baselines.random_player(),
        "greedy": baselines.greedy(),
    }
    for name, act in players.items():
        envs = SSAConjunctionVectorEnv(300, n_objects=8, horizon=80)
        obs, infos = envs.reset(seed=0)
        total, alive = np.zeros(300), np.ones(300, bool)
        for _ in range(80):
            obs, reward, terminated, _, infos = envs.step(act(obs, infos["action_mask"]))
            total += reward * alive
            alive &= ~terminated
        returns[name] = total
    better = returns["greedy"] - np.maximum(returns["wait"].mean(), returns["random"].mean())
    assert better.mean() > 4 * better.std() / 300**0.5

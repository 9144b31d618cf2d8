"""Probabilities match frequencies, and events match the orbits."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from headrace_ssa import SSAConjunctionVectorEnv, orbits, scene, tracking
from headrace_ssa.outlook import FEATURES, GLOBALS
from headrace_ssa.tracking import STEP_S

FEATURE_TIME, FEATURE_RISK = 0, 2


def shown(obs, feature):
    """Return a number of every object of the list, ``[B, n]``."""
    return obs[:, GLOBALS:].reshape(len(obs), -1, FEATURES)[..., feature].astype(float)


def risk_shown(obs):
    level = shown(obs, FEATURE_RISK)
    return np.where(level > 0, 10 ** (8 * (level - 1)), 0.0)


# -- calibration -----------------------------------------------------------------------------


def within_errors(happened, probability, errors=4.0):
    """Check that the number of events agrees with the sum of their probabilities."""
    expected, spread = probability.sum(), np.sqrt((probability * (1 - probability)).sum())
    print(f"\ncalibration: {happened.sum():.0f} collisions, {expected:.1f} ± {spread:.1f} expected")
    assert spread > 0
    assert abs(happened.sum() - expected) < errors * spread, (happened.sum(), expected, spread)


def play_through(envs, seed, choose):
    """Play one episode each: initial risk of any collision, collisions, and close calls."""
    obs, infos = envs.reset(seed=seed)
    first = obs[:, 2].astype(float)
    alive, collided = np.ones(len(obs), bool), np.zeros(len(obs), bool)
    calls = []
    for _ in range(envs.horizon):
        # Episodes in which one object, and no other, passes in this step.
        next_up = np.isclose(shown(obs, FEATURE_TIME), 1 / envs.horizon)
        single = alive & (next_up.sum(axis=1) == 1)
        risks = (risk_shown(obs) * next_up).sum(axis=1)
        obs, _, terminated, _, infos = envs.step(choose(obs, infos["action_mask"]))
        hit = infos["collisions"] > 0
        calls.append(np.stack([risks[single], hit[single]]))
        collided |= hit & alive
        alive &= ~terminated
    assert not alive.any()
    return first, collided, np.concatenate(calls, axis=1)


def test_as_many_episodes_end_in_a_collision_as_was_probable_when_they_began():
    envs = SSAConjunctionVectorEnv(2000, n_objects=8, horizon=60)
    first, collided, _ = play_through(envs, 0, lambda obs, mask: np.zeros(len(obs), int))
    assert collided.sum() > 100
    within_errors(collided, first)
    for part in np.array_split(np.argsort(first), 3):  # the safe, the middling, the dangerous
        within_errors(collided[part], first[part])


def look_at_the_most_dangerous(obs, mask):
    looks = np.where(mask[:, 1:-2], risk_shown(obs), -1.0)
    return np.where(looks.max(axis=1) >= 0, 1 + looks.argmax(axis=1), 0)


@pytest.mark.slow
def test_the_risk_shown_just_before_a_close_approach_is_how_often_it_ends_in_a_collision():
    envs = SSAConjunctionVectorEnv(4000, n_objects=8, horizon=60)
    first, collided, (risks, hit) = play_through(envs, 9, look_at_the_most_dangerous)
    within_errors(collided, first)
    edges = [-1.0, 0.01, 0.1, 0.3, 0.7, 1.0]
    for low, high in pairwise(edges):
        chosen = (risks > low) & (risks <= high)
        assert chosen.sum() >= 100
        within_errors(hit[chosen], risks[chosen])


def test_true_errors_are_as_large_as_the_catalogue_and_the_radars_say():
    rngs = [np.random.default_rng(i) for i in range(400)]
    at = scene.draw(rngs, 20, 60)
    rate = (at.path[:, 1] - at.path[:, 0]) / STEP_S
    for error, deviation in (
        (at.path[:, 0], np.sqrt(at.track.var)),
        (rate, np.sqrt(at.track.var_rate)),
        (at.offset, np.sqrt(at.side_var)),
        (at.own_error, scene.OWN_M),
        (at.noise, tracking.SENSOR_M),
    ):
        ratio = error / deviation
        size = (2 * ratio.size) ** 0.5
        assert abs(ratio.std() - 1) < 4 / size + 1e-3  # the first step's force is in the rate
        assert abs(ratio.mean()) < 6 / size
    assert np.abs(np.corrcoef(at.noise.reshape(-1, 3), rowvar=False) - np.eye(3)).max() < 0.03


# -- the orbits behind it --------------------------------------------------------------------


def one(values, *index):
    return type(values)(*(x[index].copy() for x in values))


def true_orbit(at, row, k):
    """Return object ``k``'s catalogue orbit, shifted by its initial error and its rate."""
    mean = one(at.elements, row, [1 + k])
    start = at.path[row, 0, k]
    rate = (at.path[row, 1, k] - start) / STEP_S
    n = np.sqrt(orbits.MU / mean.a**3)
    mean = mean._replace(lon=mean.lon + start / mean.a, a=mean.a - rate / (1.5 * n))
    return mean, orbits.drifts(mean)


def least_distance(first, second, around, half_width_s=3.0):
    """Return the least distance of two orbits, from positions on a fine grid."""
    for steps in (601, 601):  # the second one within a step of the first
        times = around + np.linspace(-half_width_s, half_width_s, steps)
        places = [
            orbits.state(orbits.moved(mean, moving, times))[0] for mean, moving in (first, second)
        ]
        distance = np.linalg.norm(places[0] - places[1], axis=-1)
        around, half_width_s = times[distance.argmin()], 2 * half_width_s / (steps - 1)
    return distance.min()


@pytest.mark.parametrize("sign", [0, 1, -1])
def test_a_miss_is_the_least_distance_of_the_true_orbits(sign):
    num, n_objects = 16, 3
    envs = SSAConjunctionVectorEnv(num, n_objects, horizon=120)
    envs.reset(seed=4)
    at = envs.scene
    # No random forces, and errors along the track only: what mean elements can tell.
    start, rate = at.path[:, :1], (at.path[:, 1:2] - at.path[:, :1]) / STEP_S
    at.path = start + rate * STEP_S * np.arange(121)[:, None]
    for _ in range(10):
        envs.step(np.zeros(num, int))
    before = at.elements.a[:, 0].copy()
    envs.step(np.full(num, {0: 0, 1: n_objects + 1, -1: n_objects + 2}[sign]))
    assert (np.sign(at.elements.a[:, 0] - before) == sign).all()
    errors = []
    for row in range(num):
        own = one(at.elements, row, [0]), one(at.drifts, row, [0])
        for k in range(n_objects):
            tca = at.tca[row, k]
            ahead = at.spread[row, k, :, 1] * at.path[row, tca, k]
            linear = np.hypot(*(at.miss[row, k] + ahead - envs.shift[row, k]))
            true = least_distance(own, true_orbit(at, row, k), STEP_S * tca)
            errors.append((abs(true - linear), linear))
    difference, linear = np.array(errors).T
    assert np.median(difference) < 2.0
    assert (difference < 15.0 + 0.01 * linear).all()


def apart(position, velocity, own_position, own_velocity):
    """Return the distance of the straight lines through two states."""
    along = velocity - own_velocity
    along /= np.linalg.norm(along)
    gap = position - own_position
    return np.linalg.norm(gap - (gap @ along) * along)


def test_what_moves_either_body_shows_in_the_encounter_plane_as_vectors_say():
    envs = SSAConjunctionVectorEnv(10, n_objects=3, horizon=80)
    envs.reset(seed=11)
    at, rng = envs.scene, np.random.default_rng(0)
    for row in range(10):
        for k in range(3):
            seconds = STEP_S * at.tca[row, k]
            both = [
                orbits.state(
                    orbits.moved(one(at.elements, row, i), one(at.drifts, row, i), seconds)
                )
                for i in (0, 1 + k)
            ]
            (r, v), (position, velocity) = both
            assert np.hypot(*at.miss[row, k]) == pytest.approx(
                apart(position, velocity, r, v), abs=0.01
            )
            error, move = 100 * rng.standard_normal(3), 100 * rng.standard_normal(2)
            there = position + error @ orbits.frame(position, velocity)
            here = r + move @ orbits.frame(r, v)[:2]
            told = at.miss[row, k] + at.spread[row, k] @ error - at.push[row, k] @ move
            assert np.hypot(*told) == pytest.approx(apart(there, velocity, here, v), abs=0.01)

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace_ssa import orbits, tracking
from headrace_ssa.orbits import Elements
from headrace_ssa.tracking import ACCELERATION, SENSOR_M, STEP_S, Along

# One step of the filter, with matrices.
F = np.array([[1.0, STEP_S], [0.0, 1.0]])
G = np.array([STEP_S**2 / 2, STEP_S])
Q = ACCELERATION**2 * np.outer(G, G)


def some(num, seed=0):
    """Return tracks with any correlation between position and rate."""
    rng = np.random.default_rng(seed)
    sigma, sigma_rate = rng.uniform(1, 300, num), rng.uniform(1e-4, 0.02, num)
    mean, rate = 100 * rng.standard_normal(num), 0.01 * rng.standard_normal(num)
    cov = rng.uniform(-0.99, 0.99, num) * sigma * sigma_rate
    return Along(mean, rate, sigma**2, cov, sigma_rate**2)


def matrices(track):
    """Return state ``[N, 2]`` and covariance ``[N, 2, 2]``."""
    x = np.stack([track.mean, track.rate], axis=-1)
    p = np.stack([track.var, track.cov, track.cov, track.var_rate], axis=-1)
    return x, p.reshape(-1, 2, 2)


def assert_same(track, x, p, rtol=1e-12):
    got_x, got_p = matrices(track)
    assert np.allclose(got_x, x, rtol=rtol, atol=1e-12)
    scale = np.sqrt(np.einsum("nii->ni", p))
    assert np.abs((got_p - p) / (scale[:, :, None] * scale[:, None, :])).max() < rtol


# -- the filter ------------------------------------------------------------------------------


@pytest.mark.parametrize("steps", [0, 1, 2, 7, 200])
def test_many_steps_at_once_are_as_many_single_ones(steps):
    track = some(50)
    x, p = matrices(track)
    one = track
    for _ in range(steps):
        x, p = x @ F.T, F @ p @ F.T + Q
        one = tracking.predicted(one, np.int64(1))
    at_once = tracking.predicted(track, np.full(50, steps))
    assert_same(at_once, x, p)
    assert_same(at_once, *matrices(one))


@examples(100)
@given(st.integers(0, 2**31), st.integers(0, 200), st.integers(0, 200))
def test_going_first_some_way_and_then_the_rest_is_going_all_of_it(seed, first, rest):
    track = some(3, seed)
    halfway = tracking.predicted(track, np.int64(first))
    whole = tracking.predicted(track, np.int64(first + rest))
    assert_same(tracking.predicted(halfway, np.int64(rest)), *matrices(whole))


def test_a_look_is_a_kalman_update():
    track = some(50)
    measured = track.mean + 100 * np.random.default_rng(1).standard_normal(50)
    h = np.array([[1.0, 0.0]])
    x, p = matrices(track)
    for i in range(50):
        gain = p[i] @ h.T @ np.linalg.inv(h @ p[i] @ h.T + SENSOR_M**2)
        x[i] = x[i] + gain @ (measured[i] - h @ x[i])
        # Joseph's form, which is right for any gain.
        keep = np.eye(2) - gain @ h
        p[i] = keep @ p[i] @ keep.T + SENSOR_M**2 * gain @ gain.T
    assert_same(tracking.observed(track, measured), x, p, rtol=1e-9)


def test_a_constant_is_weighed_by_its_precision():
    rng = np.random.default_rng(2)
    mean, var, measured = rng.normal(size=20), rng.uniform(1, 3600, 20), rng.normal(size=20)
    got, got_var = tracking.combined(mean, var, measured)
    precision = 1 / var + 1 / SENSOR_M**2
    assert np.allclose(got_var, 1 / precision, rtol=1e-12)
    assert np.allclose(got, (mean / var + measured / SENSOR_M**2) / precision, rtol=1e-12)


# -- the truth -------------------------------------------------------------------------------


def test_a_true_path_is_that_of_steady_forces_within_each_step():
    rng = np.random.default_rng(3)
    start, rate, force = (
        rng.normal(size=(2, 3)),
        rng.normal(size=(2, 3)),
        rng.normal(size=(2, 9, 3)),
    )
    path = tracking.true_path(start, rate, force)
    assert path.shape == (2, 10, 3)
    x, v = start, rate
    for t in range(9):
        assert np.allclose(path[:, t], x, rtol=1e-12)
        x, v = x + v * STEP_S + force[:, t] * STEP_S**2 / 2, v + force[:, t] * STEP_S
    assert np.allclose(path[:, 9], x, rtol=1e-12)


@pytest.mark.parametrize("sigma_rate", [0.0, 0.004])
def test_the_filter_tells_how_far_true_paths_stray(sigma_rate):
    num, steps, sigma = 20_000, 200, 30.0
    rng = np.random.default_rng(4)
    start, rate = sigma * rng.standard_normal(num), sigma_rate * rng.standard_normal(num)
    path = tracking.true_path(start, rate, ACCELERATION * rng.standard_normal((steps, num)))
    zero = np.zeros(1)
    track = Along(zero, zero, zero + sigma**2, zero, zero + sigma_rate**2)
    for t in (0, 1, 10, 50, 100, 200):
        told = np.sqrt(tracking.predicted(track, np.int64(t)).var[0])
        print(
            f"\ngrowth: {path[t].std():.1f} m of spread after {t} steps, told {told:.1f} m", end=""
        )
        assert path[t].std() == pytest.approx(told, rel=0.02)


def test_after_looks_errors_are_as_large_as_the_filter_says():
    num, rng = 20_000, np.random.default_rng(5)
    sigma = np.array([150.0, 0.007])
    start, rate = sigma[:, None] * rng.standard_normal((2, num))
    path = tracking.true_path(start, rate, ACCELERATION * rng.standard_normal((100, num)))
    zero = np.zeros(num)
    track = Along(zero, zero, zero + sigma[0] ** 2, zero, zero + sigma[1] ** 2)
    now = 0
    for at in (3, 20, 21, 60):
        track = tracking.predicted(track, np.int64(at - now))
        measured = path[at] + SENSOR_M * rng.standard_normal(num)
        track, now = tracking.observed(track, measured), at
    for at in (60, 70, 100):
        later = tracking.predicted(track, np.int64(at - now))
        news = (path[at] - later.mean) / np.sqrt(later.var)
        assert news.std() == pytest.approx(1.0, abs=0.02)
        assert abs(news.mean()) < 4 / num**0.5


# -- the physics -----------------------------------------------------------------------------


def test_a_spread_of_the_axis_drifts_apart_along_the_track_only(monkeypatch):
    monkeypatch.setattr(orbits, "J2", 0.0)
    monkeypatch.setattr(orbits, "_HALF_J2", 0.0)
    rng, num, a, inc, zero = np.random.default_rng(6), 500, 7.1e6, 1.2, np.zeros(500)
    n = np.sqrt(orbits.MU / a**3)
    da, dex, dey = np.array([[5.0], [3e-6], [3e-6]]) * rng.standard_normal((3, num))
    cloud = Elements(a + da, dex, dey, inc + 3e-6 * rng.standard_normal(num), zero, zero)
    middle = Elements(*(np.array([x]) for x in (a, 0.0, 0.0, inc, 0.0, 0.0)))
    for turns in (1.0, 2.25, 3.5):
        seconds = turns * 2 * np.pi / n
        here, speed = orbits.state(orbits.moved(middle, orbits.drifts(middle), seconds))
        there, _ = orbits.state(orbits.moved(cloud, orbits.drifts(cloud), seconds))
        radial, along, across = ((there - here) @ orbits.frame(here, speed)[0].T).T
        drift = -1.5 * n * da * seconds  # m: the filter's rate times the time
        swing = 2 * a * (dex * np.sin(n * seconds) - dey * np.cos(n * seconds))
        assert np.std(along - drift - swing) < 0.001 * drift.std()
        # All else comes back with each turn.
        assert swing.std() < 60.0
        assert radial.std() < 1.2 * np.hypot(5.0, 3e-6 * a)
        assert across.std() < 1.2 * 3e-6 * a

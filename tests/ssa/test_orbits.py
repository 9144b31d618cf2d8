from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace_ssa import orbits
from headrace_ssa.orbits import Elements

DAY_S = 86_400.0
EPISODE_S = 24_000.0  # 6.7 h


def some(num, seed=0, spread=1e-3):
    """Return mean elements of ``num`` orbits like the game's."""
    rng = np.random.default_rng(seed)
    ex, ey = spread * rng.standard_normal((2, num))
    inc = np.radians(rng.uniform(20, 160, num))
    raan, lon = rng.uniform(0, 2 * np.pi, (2, num))
    return Elements(rng.uniform(6.95e6, 7.2e6, num), ex, ey, inc, raan, lon)


def later(mean, seconds):
    return orbits.moved(mean, orbits.drifts(mean), seconds)


# -- an integrator that knows forces only ----------------------------------------------------


def gravity(r):
    """Return the acceleration by a point mass and the Earth's flattening, ``[..., 3]``."""
    distance2 = np.sum(r * r, axis=-1, keepdims=True)
    pull = -orbits.MU * r / distance2**1.5
    ratio = 5 * r[..., 2:] ** 2 / distance2
    factor = ratio - np.array([1.0, 1.0, 3.0])
    flat = 1.5 * orbits.J2 * orbits.MU * orbits.EARTH_RADIUS**2 / distance2**2.5
    return pull + flat * factor * r


def integrate(r, v, seconds, step_s=10.0):
    """Return states at every step: positions and velocities ``[K + 1, ..., 3]``."""
    path = [(r, v)]
    for _ in range(round(seconds / step_s)):
        k1, l1 = v, gravity(r)
        k2, l2 = v + step_s / 2 * l1, gravity(r + step_s / 2 * k1)
        k3, l3 = v + step_s / 2 * l2, gravity(r + step_s / 2 * k2)
        k4, l4 = v + step_s * l3, gravity(r + step_s * k3)
        r = r + step_s / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        v = v + step_s / 6 * (l1 + 2 * l2 + 2 * l3 + l4)
        path.append((r, v))
    return np.stack([r for r, _ in path]), np.stack([v for _, v in path])


def flown(mean, seconds):
    """Return the integrator's path from these elements, and its times."""
    r, v = integrate(*orbits.state(mean), seconds)
    return r, v, 10.0 * np.arange(len(r))[:, None]


def test_over_a_day_it_stays_within_kilometres_of_an_integrator():
    mean = some(40)
    r, v, times = flown(mean, DAY_S)
    ours, speeds = orbits.state(later(mean, times))
    away = np.linalg.norm(ours - r, axis=-1)
    episode = times[:, 0] <= EPISODE_S
    print(f"\norbits: {away.max():,.0f} m after a day, {away[episode].max():,.0f} m in an episode")
    assert away[episode].max() < 4_000.0  # m, of 180,000 km
    assert away.max() < 14_000.0  # of 650,000 km
    assert np.median(away[-1]) < 5_000.0
    assert np.linalg.norm(speeds - v, axis=-1).max() < 15.0
    # Nearly all of it is along the track.
    radial, _, across = np.abs(np.moveaxis(in_frame(r, v, ours - r), -1, 0))
    assert radial.max() < 150.0
    assert across.max() < 1_600.0


def in_frame(r, v, change):
    """Return a vector's parts: radial, along the track, across it."""
    return np.einsum("...fx,...x->...f", orbits.frame(r, v), change)


def without_flattening(monkeypatch):
    monkeypatch.setattr(orbits, "J2", 0.0)
    monkeypatch.setattr(orbits, "_HALF_J2", 0.0)


def test_without_flattening_it_is_keplers_orbit(monkeypatch):
    without_flattening(monkeypatch)
    mean = some(40)
    r, v, times = flown(mean, DAY_S)
    ours, speeds = orbits.state(later(mean, times))
    assert np.linalg.norm(ours - r, axis=-1).max() < 1.0  # m; the integrator's own error
    assert np.linalg.norm(speeds - v, axis=-1).max() < 1e-3


# -- secular rates ---------------------------------------------------------------------------


def test_the_node_turns_as_fast_as_the_integrators():
    mean = some(40)
    r, v, times = flown(mean, DAY_S)
    spin = np.cross(r, v)
    node = np.unwrap(np.arctan2(spin[..., 0], -spin[..., 1]), axis=0)
    slope = np.polyfit(times[:, 0], node, 1)[0]
    assert np.abs(slope / orbits.drifts(mean).raan - 1).max() < 0.01


def test_a_sun_synchronous_orbit_follows_the_sun():
    mean = Elements(orbits.EARTH_RADIUS + 700e3, 0.0, 0.0, np.radians(98.19), 0.0, 0.0)
    degrees_a_day = np.degrees(orbits.drifts(mean).raan) * DAY_S
    assert degrees_a_day == pytest.approx(360 / 365.2422, rel=0.005)


# -- mean elements of a state ----------------------------------------------------------------


angle = st.floats(0, 2 * np.pi)
eccentricity = st.floats(-3e-3, 3e-3)
inclination = st.floats(np.radians(20), np.radians(160))


@examples(100)
@given(st.floats(6.9e6, 7.3e6), eccentricity, eccentricity, inclination, angle, angle)
def test_mean_elements_are_those_of_their_state(a, ex, ey, inc, raan, lon):
    mean = Elements(*(np.array([x]) for x in (a, ex, ey, inc, raan, lon)))
    r, v = orbits.state(mean)
    found = orbits.mean_elements(r, v)
    again = orbits.state(found)
    assert np.linalg.norm(again[0] - r) < 0.1  # m
    assert np.linalg.norm(again[1] - v) < 6e-5
    assert found.a == pytest.approx(a, abs=0.15)
    assert found.ex == pytest.approx(ex, abs=1.2e-8)
    assert found.ey == pytest.approx(ey, abs=1.2e-8)
    assert abs(found.inc - inc) < 1e-8
    for x, y in ((found.raan, raan), (found.lon, lon)):
        assert abs(np.remainder(x - y + np.pi, 2 * np.pi) - np.pi) < 1e-8


def test_kepler_elements_are_those_of_a_state_without_flattening(monkeypatch):
    without_flattening(monkeypatch)
    mean = some(200, seed=3)
    for told, found in zip(mean, orbits.kepler_elements(*orbits.state(mean)), strict=True):
        change = found - told
        if told.max() < 7:  # an angle, or as good as one
            change = np.remainder(change + np.pi, 2 * np.pi) - np.pi
        assert np.abs(change / told.max()).max() < 1e-12


# -- burns -----------------------------------------------------------------------------------


@pytest.mark.parametrize("speed", [0.5, -0.5])
def test_a_burn_moves_a_satellite_as_an_impulse_moves_it_in_the_integrator(speed):
    mean = some(20, seed=5, spread=2e-4)
    n = np.sqrt(orbits.MU / mean.a**3)
    r, v, times = flown(mean, 2 * 5_800.0)
    push = speed * v[0] / np.linalg.norm(v[0], axis=-1, keepdims=True)
    pushed, _ = integrate(r[0], v[0] + push, times[-1, 0])
    moved = in_frame(r, v, pushed - r)
    radial, along = orbits.displacement(n, times)
    away = np.abs(moved - speed * np.stack([radial, along, 0 * along], axis=-1)).max((0, 1))
    assert np.abs(speed * along).max() > 18e3
    assert (away < [60.0, 100.0, 25.0]).all()  # m, of 18 km
    # The same by mean elements.
    after = Elements(*(x.copy() for x in mean))
    moving = orbits.drifts(after)
    orbits.burn(after, moving, (np.arange(20),), np.full(20, speed), np.zeros(20))
    there = orbits.state(orbits.moved(after, moving, times))[0]
    here = orbits.state(later(mean, times))[0]
    by_elements = in_frame(r, v, there - here)
    assert (np.abs(by_elements - moved).max((0, 1)) < [4.0, 40.0, 4.0]).all()


def test_a_burn_changes_the_speed_and_not_the_place():
    mean = some(30, seed=6, spread=2e-4)
    moving = orbits.drifts(mean)
    seconds = np.linspace(0, EPISODE_S, 30)
    r, v = orbits.state(orbits.moved(mean, moving, seconds))
    speed = np.where(np.arange(30) % 2, 0.03, -0.03)
    after = Elements(*(x.copy() for x in mean))
    burning = np.arange(0, 30, 3)
    burns = (burning,), speed[burning], seconds[burning]
    orbits.burn(after, moving, *burns)
    r_after, v_after = orbits.state(orbits.moved(after, moving, seconds))
    change = in_frame(r, v, v_after - v)
    assert np.abs(r_after - r).max() < 0.2  # m; the burn's share of J2's periodic part
    assert np.allclose(change[burning, 1], speed[burning], rtol=0.01)
    assert np.abs(change[:, [0, 2]]).max() < 1e-4
    others = np.setdiff1d(np.arange(30), burning)
    assert np.array_equal(r_after[others], r[others])
    for told, new in zip(orbits.drifts(after), moving, strict=True):
        assert np.allclose(told, new, rtol=1e-12, atol=0)


# -- arrays ----------------------------------------------------------------------------------


def test_an_orbit_alone_is_what_it_is_among_others():
    mean = some(60, seed=7)
    grid = Elements(*(x.reshape(3, 4, 5) for x in mean))
    times = np.linspace(0, DAY_S, 60)
    r, v = orbits.state(later(mean, times))
    shaped = orbits.state(later(grid, times.reshape(3, 4, 5)))
    assert np.allclose(shaped[0].reshape(60, 3), r, rtol=1e-9, atol=1e-2)
    for i in range(0, 60, 7):
        alone = Elements(*(x[i] for x in mean))
        there, speed = orbits.state(later(alone, times[i]))
        assert np.linalg.norm(there - r[i]) < 1e-9 * 7e6
        assert np.linalg.norm(speed - v[i]) < 1e-9 * 7.5e3


def test_position_is_that_of_the_state():
    mean = later(some(60, seed=8), 12_345.0)
    assert np.allclose(np.stack(orbits.position(mean), axis=-1), orbits.state(mean)[0], atol=1e-6)
    r, v = orbits.state(mean)
    assert np.allclose(np.cross(r, v), np.cross(r, v))
    radial, along, across = np.moveaxis(orbits.frame(r, v), -2, 0)
    assert np.allclose(np.cross(radial, along), across)
    assert np.allclose(np.sum(along * v, -1), np.linalg.norm(v, axis=-1), rtol=1e-4)


def test_the_velocity_is_how_fast_the_position_changes():
    mean, second = some(40, seed=10), 0.5
    before, after = (orbits.state(later(mean, t))[0] for t in (-second, second))
    _, v = orbits.state(mean)
    assert np.abs((after - before) / (2 * second) - v).max() < 0.05  # m/s


def test_going_on_and_back_is_standing_still():
    mean = some(20, seed=9)
    moving = orbits.drifts(mean)
    there = orbits.moved(mean, moving, 5_000.0)
    assert not np.allclose(there.lon, mean.lon, atol=1e-3)
    for back, before in zip(orbits.moved(there, moving, -5_000.0), mean, strict=True):
        assert np.allclose(back, before, rtol=1e-12, atol=1e-15)

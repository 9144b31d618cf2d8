"""Encounters of catalogue objects with a satellite: positions and orbits."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa import catalogue, meetings, orbits, scene
from headrace_ssa.orbits import Elements
from headrace_ssa.tracking import STEP_S
from tests.ssa.test_orbits import integrate, later

SHAPES = catalogue.Catalogue(
    a=6_378_137.0 + np.array([700e3, 690e3, 760e3, 900e3]),
    e=np.array([0.001, 0.02, 0.045, 0.0]),
    inc=np.radians([98.0, 52.0, 10.5, 169.0]),
)


def met(games=50, n=6, steps=100):
    """Return states of satellites, and encounters with objects of SHAPES."""
    rng = np.random.default_rng(0)
    count = (games, 1)
    ex, ey = 5e-4 * rng.standard_normal((2, *count))
    inc = np.radians(rng.uniform(50, 100, count))
    raan, lon = rng.uniform(0, 2 * np.pi, (2, *count))
    own = Elements(rng.uniform(6.98e6, 7.17e6, count), ex, ey, inc, raan, lon)
    r, v = orbits.state(later(own, STEP_S * np.arange(steps)[None]))
    uniform = rng.random((games, n, meetings.TRIES + 3))
    moment, velocity = meetings.velocities(SHAPES, r, v, uniform)
    at = moment[..., None]
    there = np.take_along_axis(r, at, axis=1), np.take_along_axis(v, at, axis=1)
    return r, moment, there, velocity


def test_objects_fly_on_the_catalogues_orbits_and_cross_the_track():
    _, moment, (r, v), velocity = met()
    assert (np.diff(moment, axis=1) >= 0).all()
    assert moment.min() >= 0
    assert len(np.unique(moment)) > 50
    shape = orbits.kepler_elements(r, velocity)
    away = np.abs(shape.inc[..., None] - SHAPES.inc)
    which = away.argmin(axis=-1)
    assert np.allclose(away.min(axis=-1), 0.0, atol=1e-9)
    assert set(which.ravel()) >= {1, 2}
    assert np.allclose(np.hypot(shape.ex, shape.ey), SHAPES.e[which], atol=1e-9)
    # Those whose orbit crosses this height are not moved; the others by as much as it takes.
    radius = np.linalg.norm(r, axis=-1)
    a, e = SHAPES.a[which], SHAPES.e[which]
    gap = np.maximum(np.abs(radius - a) - a * e, 0.0)
    moved = np.abs(shape.a - a)
    assert (moved[gap == 0] < 1.0).all()
    assert (gap == 0).mean() > 0.5
    assert np.allclose(moved * (1 + np.sign(radius - a) * e), gap, atol=1.0)
    cosine = (velocity * v).sum(-1) / np.linalg.norm(velocity, axis=-1) / np.linalg.norm(v, axis=-1)
    assert np.degrees(np.arccos(np.abs(cosine))).min() > 19.9
    climb = (velocity * r).sum(-1)
    north = velocity[..., 2]
    for signs in (climb[which != 3], north):
        assert 0.3 < (signs > 0).mean() < 0.7


def test_orbits_as_long_as_the_longest_stay_within_kilometres_of_an_integrator():
    _, _, (r, _), velocity = met(games=4)
    mean = orbits.mean_elements(r, velocity)
    start, rate = orbits.state(mean)
    assert np.linalg.norm(start - r, axis=-1).max() < 1_000.0
    path, _ = integrate(start, rate, 24_000.0)
    times = 10.0 * np.arange(len(path))[:, None, None]
    off = np.linalg.norm(orbits.state(later(mean, times))[0] - path, axis=-1)
    print(f"off by {off.max():,.0f} m at most, {np.median(off[-1]):,.0f} m (median) at the end")
    assert off.max() < 25_000.0  # m, of 180,000 km


POLAR = catalogue.Catalogue(a=np.full(1, 7.078e6), e=np.full(1, 0.001), inc=np.full(1, np.pi / 2))


@pytest.mark.parametrize("inclination", [90.0, 89.5, 90.3])
def test_orbits_over_the_poles_meet_too_tilted_by_as_little_as_lets_them(inclination):
    count = (40, 1)
    raan, lon = np.random.default_rng(0).uniform(0, 2 * np.pi, (2, *count))
    level = np.zeros(count), np.zeros(count), np.full(count, np.radians(inclination))
    own = Elements(np.full(count, 7.078e6), *level, raan, lon)
    r, v = orbits.state(later(own, STEP_S * np.arange(61)[None]))
    uniform = np.random.default_rng(1).random((40, 3, meetings.TRIES + 3))
    moment, velocity = meetings.velocities(POLAR, r, v, uniform)
    at = moment[..., None]
    there, speed = np.take_along_axis(r, at, axis=1), np.take_along_axis(v, at, axis=1)
    level = (
        velocity
        - (velocity * there).sum(-1, keepdims=True) / (there**2).sum(-1, keepdims=True) * there
    )
    along = orbits.frame(there, speed)[..., 1, :]
    cosine = (level * along).sum(-1) / np.linalg.norm(level, axis=-1)
    assert np.degrees(np.arccos(np.abs(cosine))).min() >= 20.0
    off = np.degrees(np.abs(orbits.kepler_elements(there, velocity).inc - np.pi / 2))
    assert off.max() < 1.3
    assert (off > 1e-3).any()
    met_untilted = off < 1e-6  # at some places of an orbit that isn't quite over the poles
    assert met_untilted.any() == (inclination != 90.0)


def test_a_game_of_polar_orbits_alone_can_be_drawn(monkeypatch):
    drawn = scene._satellite
    monkeypatch.setattr(
        scene, "_satellite", lambda *u: (s := drawn(*u))._replace(inc=0 * s.inc + np.pi / 2)
    )
    rngs = [np.random.default_rng(seed) for seed in range(5)]
    there = scene.draw(rngs, 4, 100, POLAR)
    assert np.isfinite(there.miss).all()
    assert np.isfinite(there.elements.inc).all()

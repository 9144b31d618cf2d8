from __future__ import annotations

import math

import numpy as np
import pytest

from headrace_ssa import sensors
from headrace_ssa.orbits import EARTH_RADIUS, EARTH_RATE
from tests.ssa.oracle import sees_any

SITES = range(len(sensors.SITES_DEG))
SIDEREAL_DAY_S = 86_164.1


def visible(place, angle=0.0):
    x, y, z = np.reshape(place, (3, 1))
    return bool(sensors.visible(x, y, z, np.array([angle]))[0])


def place(lat_deg, lon_deg, altitude):
    """Return a point above the Earth, before it turned."""
    lat, lon = math.radians(lat_deg), math.radians(lon_deg)
    r = EARTH_RADIUS + altitude
    return r * np.array(
        [math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)]
    )


def test_whoever_is_seen_stands_high_and_near_enough_by_geometry():
    rng = np.random.default_rng(0)
    direction = rng.standard_normal((3, 4000))
    direction /= np.linalg.norm(direction, axis=0)
    places = direction * (EARTH_RADIUS + rng.uniform(300e3, 3_000e3, 4000))
    angle = rng.uniform(0, 20, 4000)
    got = sensors.visible(*places, angle)
    assert got.dtype == bool
    want = [sees_any(p, a) for p, a in zip(places.T.tolist(), angle, strict=True)]
    assert got.tolist() == want
    assert 200 < got.sum() < 3800


@pytest.mark.parametrize("site", SITES)
def test_a_radar_sees_its_zenith_out_to_its_range(site):
    lat, lon = sensors.SITES_DEG[site]
    assert visible(place(lat, lon, 700e3))
    assert visible(place(lat, lon, sensors.MAX_RANGE_M - 1))
    assert not visible(place(lat, lon, sensors.MAX_RANGE_M + 1))


@pytest.mark.parametrize("site", SITES)
def test_a_radar_sees_down_to_its_lowest_elevation_in_every_direction(monkeypatch, site):
    lat, lon = sensors.SITES_DEG[site]
    monkeypatch.setattr(sensors, "SITES_DEG", (sensors.SITES_DEG[site],))  # the others look away
    up = place(lat, lon, 0.0) / EARTH_RADIUS
    east = np.cross([0.0, 0.0, 1.0], up)
    east /= np.linalg.norm(east)
    north = np.cross(up, east)
    for azimuth in np.radians(range(0, 360, 30)):
        level = math.cos(azimuth) * north + math.sin(azimuth) * east
        for degrees, seen in (
            (9.9, False),
            (10.1, True),
            (60.0, True),
            (-10.1, False),
            (-60.0, False),
        ):
            e = math.radians(degrees)
            ray = math.cos(e) * level + math.sin(e) * up
            assert visible(EARTH_RADIUS * up + 1_500e3 * ray) == seen


def test_nobody_sees_through_the_earth():
    rng = np.random.default_rng(1)
    sites = sensors.site_directions()
    for _ in range(300):
        direction = rng.standard_normal(3)
        direction /= np.linalg.norm(direction)
        spot = direction * (EARTH_RADIUS + 500e3)
        if (sites @ spot < EARTH_RADIUS).all():
            assert not visible(spot)


def test_the_earth_turns_eastwards_once_in_a_sidereal_day():
    lat, lon = sensors.SITES_DEG[2]
    quarter = SIDEREAL_DAY_S / 4
    above = place(lat, lon + 90.0, 700e3)
    assert not visible(above, 0.0)
    assert visible(above, EARTH_RATE * quarter)
    assert not visible(above, -EARTH_RATE * quarter)
    assert visible(place(lat, lon, 700e3), EARTH_RATE * SIDEREAL_DAY_S)
    assert pytest.approx(2 * math.pi, rel=1e-6) == EARTH_RATE * SIDEREAL_DAY_S

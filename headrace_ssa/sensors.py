"""Radars on the ground, and which objects they can see."""

from __future__ import annotations

import numpy as np

from headrace_ssa.orbits import EARTH_RADIUS

SITES_DEG = (
    (65.0, -20.0),
    (48.0, 11.0),
    (35.0, -118.0),
    (5.0, -52.0),
    (-21.0, 55.0),
    (-33.0, 149.0),
)
"""Latitude and longitude; the Earth is a sphere here."""
MIN_ELEVATION_DEG = 10.0
"""A radar's field of regard is a cone about the zenith, down to this elevation …"""
MAX_RANGE_M = 2_500_000.0
"""… and out to this range."""


def site_directions() -> np.ndarray:
    """Unit vectors ``[S, 3]`` from the Earth's centre to the sites, turning with the Earth."""
    lat, lon = np.radians(np.array(SITES_DEG)).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def visible(x: np.ndarray, y: np.ndarray, z: np.ndarray, earth_angle: np.ndarray) -> np.ndarray:
    """Whether some site sees each object, bool.

    Args:
        x, y, z: in the inertial frame, m, of one shape.
        earth_angle: how far the Earth has turned, rad, broadcast against them.
    """
    cos, sin = np.cos(earth_angle), np.sin(earth_angle)
    x, y = x * cos + y * sin, y * cos - x * sin
    away2 = x * x + y * y + z * z + EARTH_RADIUS**2
    # A range below `far` at an elevation above the least: both are bounds on the part of the
    # position that points to the site, so no square root is taken.
    seen = np.zeros(x.shape, bool)
    lowest2 = np.sin(np.radians(MIN_ELEVATION_DEG)) ** 2
    for sx, sy, sz in site_directions():
        height = x * sx + y * sy + z * sz
        range2 = away2 - 2.0 * EARTH_RADIUS * height
        up = height - EARTH_RADIUS
        seen |= (up > 0.0) & (up * up >= lowest2 * range2) & (range2 <= MAX_RANGE_M**2)
    return seen

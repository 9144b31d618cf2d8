"""Ground radars: their sites, and the visibility of objects."""

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
"""Latitude and longitude on a spherical Earth."""
MIN_ELEVATION_DEG = 10.0
"""Minimum elevation of a radar's field of regard, which is a cone around the zenith."""
MAX_RANGE_M = 2_500_000.0
"""Maximum range of a radar."""


def site_directions() -> np.ndarray:
    """Return unit vectors ``[S, 3]`` from the Earth's centre to the sites, in its own frame."""
    lat, lon = np.radians(np.array(SITES_DEG)).T
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def visible(x: np.ndarray, y: np.ndarray, z: np.ndarray, earth_angle: np.ndarray) -> np.ndarray:
    """Return whether at least one site sees each object, bool.

    Args:
        x, y, z: positions in the inertial frame, m, of one shape.
        earth_angle: rotation angle of the Earth, rad, broadcast against them.
    """
    cos, sin = np.cos(earth_angle), np.sin(earth_angle)
    x, y = x * cos + y * sin, y * cos - x * sin
    away2 = x * x + y * y + z * z + EARTH_RADIUS**2
    # Both range and elevation are bounds on the position's component towards the site, so no
    # square root is needed.
    seen = np.zeros(x.shape, bool)
    lowest2 = np.sin(np.radians(MIN_ELEVATION_DEG)) ** 2
    for sx, sy, sz in site_directions():
        height = x * sx + y * sy + z * sz
        range2 = away2 - 2.0 * EARTH_RADIUS * height
        up = height - EARTH_RADIUS
        seen |= (up > 0.0) & (up * up >= lowest2 * range2) & (range2 <= MAX_RANGE_M**2)
    return seen

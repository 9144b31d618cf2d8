"""Relative motion near a circular orbit (linear, with or without J2), and the Sun's direction.

The frame moves with the reference orbit: x away from the Earth, y along the track, z across it.
Lengths are in metres, times in seconds. Without J2 the equations are Clohessy and Wiltshire's
(1960). With it they are Schweighart and Sedwick's (High-Fidelity Linearized J2 Model for Satellite
Formation Flight, 2002), which average the gradient of J2 over a revolution::

    x'' = 2 c n y' + (5 c² - 2) n² x,    y'' = -2 c n x',    z'' = -(3 c² - 2) n² z

J2 also changes the rate of the reference orbit and turns its plane. The frame includes these
effects, which are equal for all satellites.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np

from headrace.errors import require
from headrace_ssa.orbits import EARTH_RADIUS, J2, MU

RADIUS_M = EARTH_RADIUS + 600e3
"""Radius of the reference orbit: at 600 km altitude a revolution takes 97 minutes."""
MEAN_MOTION = float(np.sqrt(MU / RADIUS_M**3))
"""Mean motion of the reference orbit without J2, rad/s."""


class Rates(NamedTuple):
    """Angular rates of the relative motion, rad/s; all are equal without J2."""

    turn: float = MEAN_MOTION  # the frame, c n
    ellipse: float = MEAN_MOTION  # satellites on their ellipses, sqrt(2 - c²) n
    across: float = MEAN_MOTION  # and across the track, sqrt(3 c² - 2) n


NO_J2 = Rates()


def rates(inclination: float | None = None) -> Rates:
    """Return the rates with J2 for an orbit of this inclination, degrees; None: without J2.

    Across the track, satellites whose planes differ in inclination oscillate more slowly than those
    whose planes differ in node. The returned rate is the average.

    Raises:
        ConfigError: the inclination isn't from 0 to 180.
    """
    if inclination is None:
        return NO_J2
    number = isinstance(inclination, (int, float, np.number)) and not math.isnan(inclination)
    nearest = min(max(inclination, 0), 180) if number else None
    valid = f"None (without J2) or a number from 0 to 180, in degrees (nearest: {nearest})"
    require(number and inclination == nearest, "inclination", inclination, valid)
    s = 0.375 * J2 * (EARTH_RADIUS / RADIUS_M) ** 2
    s *= 1.0 + 3.0 * math.cos(2.0 * math.radians(inclination))  # c² = 1 + s
    return Rates(*(MEAN_MOTION * math.sqrt(1.0 + share * s) for share in (1.0, -1.0, 3.0)))


@functools.cache
def propagation(seconds: float, at: Rates = NO_J2) -> np.ndarray:
    """Return the read-only transition matrix ``[6, 6]`` of a state ``(x, y, z, vx, vy, vz)``.

    It is exact for the linear equations. For satellites 10 km apart their error relative to
    two-body motion is metres after a revolution. The cache returns one array to all callers.
    """
    n, g = at.ellipse, at.turn / at.ellipse
    angle, swing = n * seconds, at.across * seconds
    c, s = np.cos(angle), np.sin(angle)
    a = 4 * g * g
    drift = (a * s - (a - 1) * angle) / n
    matrix = np.array(
        [
            [a - (a - 1) * c, 0, 0, s / n, 2 * g / n * (1 - c), 0],
            [2 * g * (a - 1) * (s - angle), 1, 0, -2 * g / n * (1 - c), drift, 0],
            [0, 0, np.cos(swing), 0, 0, np.sin(swing) / at.across],
            [(a - 1) * n * s, 0, 0, c, 2 * g * s, 0],
            [-2 * g * (a - 1) * n * (1 - c), 0, 0, -2 * g * s, a * c - (a - 1), 0],
            [0, 0, -at.across * np.sin(swing), 0, 0, np.cos(swing)],
        ]
    )
    matrix.flags.writeable = False
    return matrix


def sun_direction(elevation: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Return unit vectors ``[..., 3]`` to the Sun in the moving frame.

    Args:
        elevation: elevation of the Sun above the orbital plane, rad.
        angle: angle along the reference orbit since it was nearest to the Sun, rad.
    """
    level = np.cos(elevation)
    return np.stack([level * np.cos(angle), -level * np.sin(angle), np.sin(elevation)], axis=-1)


def is_lit(sun: np.ndarray) -> np.ndarray:
    """Return whether the reference orbit is outside the Earth's cylindrical shadow, ``[...]`` bool.

    Args:
        sun: ``[..., 3]`` from :func:`sun_direction`.
    """
    up = sun[..., 0]
    return (up > 0.0) | (RADIUS_M**2 * (1.0 - up * up) > EARTH_RADIUS**2)

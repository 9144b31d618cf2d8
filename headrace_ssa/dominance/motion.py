"""Motion near a circular orbit, and the Sun: Clohessy and Wiltshire's equations (1960), solved.

The frame moves with the reference orbit: x away from the Earth, y along the track, z across it.
Lengths are in metres, times in seconds.
"""

from __future__ import annotations

import numpy as np

from headrace_ssa.orbits import EARTH_RADIUS, MU

RADIUS_M = EARTH_RADIUS + 600e3
"""Of the reference orbit: 600 km high, where a revolution takes 97 minutes."""
MEAN_MOTION = float(np.sqrt(MU / RADIUS_M**3))
"""Of the reference orbit, rad/s."""


def propagation(seconds: float, n: float = MEAN_MOTION) -> np.ndarray:
    """The matrix ``[6, 6]`` that takes a state ``(x, y, z, vx, vy, vz)`` to the later one.

    Exact for the linearised equations of two-body motion; for satellites 10 km apart what is left
    out is metres after a revolution.

    Args:
        n: mean motion of the reference orbit, rad/s.
    """
    angle = n * seconds
    c, s = np.cos(angle), np.sin(angle)
    return np.array(
        [
            [4 - 3 * c, 0, 0, s / n, 2 / n * (1 - c), 0],
            [6 * (s - angle), 1, 0, -2 / n * (1 - c), (4 * s - 3 * angle) / n, 0],
            [0, 0, c, 0, 0, s / n],
            [3 * n * s, 0, 0, c, 2 * s, 0],
            [-6 * n * (1 - c), 0, 0, -2 * s, 4 * c - 3, 0],
            [0, 0, -n * s, 0, 0, c],
        ]
    )


def sun_direction(elevation: np.ndarray, angle: np.ndarray) -> np.ndarray:
    """Unit vectors ``[..., 3]`` to the Sun in the moving frame.

    Args:
        elevation: of the Sun over the plane of the orbit, rad. angle: how far the reference orbit
            has gone since it was nearest to the Sun, rad.
    """
    level = np.cos(elevation)
    return np.stack([level * np.cos(angle), -level * np.sin(angle), np.sin(elevation)], axis=-1)


def is_lit(sun: np.ndarray) -> np.ndarray:
    """Whether the reference orbit is outside the Earth's shadow, a cylinder; bool ``[...]``.

    Args:
        sun: ``[..., 3]``, as :func:`sun_direction` gives it.
    """
    up = sun[..., 0]
    return (up > 0.0) | (RADIUS_M**2 * (1.0 - up * up) > EARTH_RADIUS**2)

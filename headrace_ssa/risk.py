"""Collision probability at a closest approach.

Near a closest approach two satellites pass on straight lines at kilometres per second. The problem
therefore reduces to the plane perpendicular to their relative velocity: the probability is the
integral of the Gaussian of the miss vector over a disc. The radius of the disc is the sum of both
bodies' radii (Foster and Estes, NASA JSC-25898, 1992).
"""

from __future__ import annotations

import numpy as np

from headrace_ssa import orbits

_NEGLIGIBLE = 1e-8  # probabilities below need not be computed
_FAR = np.sqrt(
    -2.0 * np.log(2.0 * _NEGLIGIBLE)
)  # distance from the disc's edge, in standard deviations, at which they begin
_ACCURACY = 1e-8  # relative accuracy of the series
_BLOCK = 4  # terms between two convergence checks


def collision_probability(
    miss: np.ndarray,
    variance: tuple[np.ndarray, np.ndarray, np.ndarray],
    radius: float,
    where: np.ndarray | bool = True,
) -> np.ndarray:
    """Return the probability that the miss is shorter than ``radius``.

    Args:
        miss: mean, m, ``[2, …]`` in the encounter plane.
        variance: ``xx, xy, yy`` of the miss, m², each broadcast against ``miss[0]``. No axis of
            their ellipse may be shorter than a tenth of the radius.
        radius: combined radius, m.
        where: elements to compute; the others are 0. Probabilities below 1e-8 may be 0 as well.
    """
    long, short, cos, sin = _axes(*(x / radius**2 for x in variance))
    x, y = miss / radius
    x, y = x * cos + y * sin, y * cos - x * sin
    # The half-plane beyond a straight edge at this distance has more probability than the disc.
    reach = 1.0 / np.sqrt(short) + _FAR
    near = (x * x / long + y * y / short < reach * reach) & where
    long, short = (np.broadcast_to(v, near.shape)[near] for v in (long, short))
    total = np.zeros(near.shape)
    total[near] = _series(x[near], y[near], long, short)
    return total


def _axes(xx: np.ndarray, xy: np.ndarray, yy: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return variances along the long and the short axis, and the long axis (cos, sin)."""
    mean, half = 0.5 * (xx + yy), 0.5 * (xx - yy)
    away = np.hypot(half, xy)
    angle = 0.5 * np.arctan2(xy, half)
    return mean + away, mean - away, np.cos(angle), np.sin(angle)


def _series(x: np.ndarray, y: np.ndarray, long: np.ndarray, short: np.ndarray) -> np.ndarray:
    """Return the integral over the unit disc, by a series without cancellation.

    Serra, Arzelier, Joldes, Lasserre, Rondepierre and Salvy, Fast and Accurate Computation of
    Orbital Collision Probability for Short-Term Encounters (2016): with ``p = 1 / (2 short)`` the
    Laplace transform of ``exp(p z) P(|miss|² <= z)`` is a product whose logarithmic derivative is
    rational, so the coefficients of its expansion obey a recurrence. ``c`` are the coefficients
    without the factor ``1 / (t - p)`` that integrates, ``d`` those with it.

    Args:
        x, y: mean along the long and the short axis; long, short: variances. All ``[K]``.
    """
    p = 0.5 / short
    q = p * (1.0 - short / long)
    b, w = (0.5 * y / short) ** 2, (0.5 * x / long) ** 2
    step, step2 = 2.0 * q, q * q
    first, second, third = b + w - 1.5 * q, 2.0 * b * q - 1.5 * step2, b * step2  # before k = 0
    c, c1, c2 = np.ones_like(p), np.zeros_like(p), np.zeros_like(p)
    d, total, k, factor = np.ones_like(p), np.ones_like(p), 0, 1.0
    converging = len(p) > 0
    while converging:
        for _ in range(_BLOCK):
            first += step
            second += step2
            new = (first * c - second * c1 + third * c2) / (k + 1)
            c, c1, c2, k = new, c, c1, k + 1
            d = c + p * d
            factor /= k + 1
            total += d * factor
        converging = bool(np.any(d * factor > _ACCURACY * total))
    scale = np.exp(-p - 0.5 * (x * x / long + y * y / short))
    return scale * total / (2.0 * np.sqrt(long * short))


def plane(relative_velocity: np.ndarray, radial: np.ndarray) -> np.ndarray:
    """Return two unit vectors ``[..., 2, 3]`` perpendicular to a relative velocity.

    Args:
        relative_velocity: ``[..., 3]``.
        radial: ``[..., 3]``, not parallel to it. The first vector is perpendicular to both.
    """
    w = relative_velocity / np.linalg.norm(relative_velocity, axis=-1, keepdims=True)
    first = orbits.cross(w, radial)
    first /= np.linalg.norm(first, axis=-1, keepdims=True)
    return np.stack([first, orbits.cross(w, first)], axis=-2)

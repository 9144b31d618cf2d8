"""Draws encounters of catalogue objects with a satellite: times and velocities.

Semi-major axis, eccentricity and inclination fix the velocity of an orbit through a given position
except for two signs: climbing or sinking, and northwards or southwards.
"""

from __future__ import annotations

import numpy as np

from headrace_ssa import orbits
from headrace_ssa.catalogue import Catalogue
from headrace_ssa.orbits import MU

TRIES = 16
"""Candidates drawn per encounter: the first one whose orbit crosses the satellite's altitude is
used. Without one, the nearest orbit is raised or lowered to that altitude."""
_LEAST_ANGLE = np.radians(20.0)  # between the tracks, as for objects without a catalogue
_COS_LEAST_ANGLE = np.cos(_LEAST_ANGLE)
_MARGIN = 1e-6  # rad, so that rounding doesn't bring a tilted orbit below the least angle


def draws(n: int) -> int:
    """Return the number of uniform random numbers that ``n`` encounters need."""
    return n * (TRIES + 3)


def velocities(
    catalogue: Catalogue, r: np.ndarray, v: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an object, a time and the signs for each encounter.

    Two tracks may never cross at 20 degrees or more, for instance those of two polar orbits. The
    object's orbit is then tilted as little as possible so that they do.

    Args:
        r, v: ``[B, S, 3]`` states of the satellite at the candidate times. They must cover at least
            a revolution: every object can be met near the equator.
        uniform: ``[B, N, TRIES + 3]`` uniform random numbers.

    Returns:
        Indices of the times ``[B, N]`` int, sorted, and velocities then ``[B, N, 3]`` m/s.
    """
    which = (uniform[..., :TRIES] * len(catalogue.a)).astype(np.int64)
    a, e, inc = _choose(catalogue, np.linalg.norm(r, axis=-1).mean(axis=1), which)
    sign = np.array([1.0, -1.0])
    flat = _allowed(r[:, None], v[:, None], inc, sign)
    rows, objects = np.nonzero(~flat.any(axis=-1))
    if len(rows):
        inc[rows, objects] = _tilted(r[rows], v[rows], inc[rows, objects])
        flat[rows, objects] = _allowed(r[rows], v[rows], inc[rows, objects], sign)
    count = flat.sum(axis=-1)
    rank = (uniform[..., TRIES] * count).astype(np.int64)
    chosen = (flat.cumsum(axis=-1) == rank[..., None] + 1).argmax(axis=-1)
    order = np.argsort(chosen // 2, axis=1, kind="stable")
    a, e, inc, chosen, climbs = (
        np.take_along_axis(x, order, axis=1) for x in (a, e, inc, chosen, uniform[..., -1])
    )
    moment, side = chosen // 2, sign[chosen % 2]
    place = np.take_along_axis(r, moment[..., None], axis=1)
    return moment, _velocity(place, a, e, inc, side, np.where(climbs < 0.5, 1.0, -1.0))


def _choose(catalogue: Catalogue, radius: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return semi-major axis, eccentricity and inclination ``[B, N]`` of the used candidates."""
    a, e = catalogue.a[which], catalogue.e[which]
    away = np.maximum(np.abs(radius[:, None, None] - a) - a * e, 0.0)
    best = away.argmin(axis=-1)[..., None]
    each = (a, e, catalogue.inc[which])
    return tuple(np.take_along_axis(x, best, axis=-1)[..., 0] for x in each)


def _level(r: np.ndarray, inc: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Return the horizontal direction ``[..., 3]`` of an orbit at ``r``; NaN if out of reach.

    Args:
        r: ``[..., 3]`` m. side: 1 northwards, -1 southwards.
    """
    up = r / np.linalg.norm(r, axis=-1, keepdims=True)
    cos_lat = np.hypot(up[..., 0], up[..., 1])
    east = np.stack([-up[..., 1], up[..., 0], np.zeros_like(cos_lat)], axis=-1)
    east /= cos_lat[..., None]
    north = orbits.cross(up, east)
    eastwards = np.cos(inc) / cos_lat  # spherical trigonometry: cos i = cos(latitude) sin(azimuth)
    with np.errstate(invalid="ignore"):
        northwards = side * np.sqrt(1.0 - eastwards**2)
    return eastwards[..., None] * east + northwards[..., None] * north


def _allowed(r: np.ndarray, v: np.ndarray, inc: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return which times and signs give a large enough crossing angle, ``[..., 2 S]`` bool.

    Args:
        r, v: ``[..., S, 3]``. inc: ``[...]``. sign: ``[2]``.
    """
    cosine = _heading_cosine(r, v, inc[..., None, None], sign)
    allowed = np.abs(cosine) <= _COS_LEAST_ANGLE  # False for NaN: out of reach
    return allowed.reshape(*inc.shape, -1)


def _tilted(r: np.ndarray, v: np.ndarray, inc: np.ndarray) -> np.ndarray:
    """Return the inclinations ``[K]`` nearest to ``inc`` with a crossing angle of 20 degrees.

    Args:
        r, v: ``[K, S, 3]``. inc: ``[K]`` rad.
    """
    up = r / np.linalg.norm(r, axis=-1, keepdims=True)
    along = orbits.frame(r, v)[..., 1, :]
    across = orbits.cross(up, along)
    angle = _LEAST_ANGLE + _MARGIN
    turn = np.array([angle, np.pi - angle, np.pi + angle, -angle])[:, None]
    way = np.cos(turn) * along[..., None, :] + np.sin(turn) * across[..., None, :]  # [K, S, 4, 3]
    candidates = np.arccos(np.clip(orbits.cross(up[..., None, :], way)[..., 2], -1.0, 1.0))
    candidates = candidates.reshape(len(inc), -1)
    best = np.abs(candidates - inc[:, None]).argmin(axis=1)
    return candidates[np.arange(len(inc)), best]


def _heading_cosine(r: np.ndarray, v: np.ndarray, inc: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Return the cosine of the angle between both tracks, for either sign, ``[..., S, 2]``."""
    way = _level(r[..., None, :], inc, sign)
    along = orbits.frame(r, v)[..., 1, :]
    return (way * along[..., None, :]).sum(axis=-1)


def _velocity(
    r: np.ndarray,
    a: np.ndarray,
    e: np.ndarray,
    inc: np.ndarray,
    side: np.ndarray,
    climbs: np.ndarray,
) -> np.ndarray:
    """Return the velocity at ``r`` ``[B, N, 3]`` on the ellipse, raised or lowered to reach it."""
    radius = np.linalg.norm(r, axis=-1)
    half = a * (1.0 - e * e)
    cosine = np.clip((half / radius - 1.0) / np.maximum(e, 1e-12), -1.0, 1.0)
    half = radius * (1.0 + e * cosine)
    speed = np.sqrt(MU / half)
    sweep = speed * (1.0 + e * cosine)
    climb = climbs * speed * e * np.sqrt(1.0 - cosine * cosine)
    up = r / radius[..., None]
    return sweep[..., None] * _level(r, inc, side) + climb[..., None] * up

"""When and how objects of a catalogue meet a satellite: their velocities there.

Where an orbit of given semi-major axis, eccentricity and inclination passes a place, its velocity
is given but for two signs: whether it climbs or sinks, and whether it goes north or south.
"""

from __future__ import annotations

import numpy as np

from headrace_ssa import orbits
from headrace_ssa.catalogue import Catalogue
from headrace_ssa.orbits import MU

TRIES = 16
"""Objects drawn for each place in a game: the first whose orbit crosses the satellite's height is
taken, or else the one that comes nearest, raised or lowered to it."""
_LEAST_ANGLE = np.radians(20.0)  # between the tracks, as of other objects
_COS_LEAST_ANGLE = np.cos(_LEAST_ANGLE)
_MARGIN = 1e-6  # rad, so that rounding doesn't take a tilted orbit below the least angle


def draws(n: int) -> int:
    """How many uniform numbers ``n`` meetings take."""
    return n * (TRIES + 3)


def velocities(
    catalogue: Catalogue, r: np.ndarray, v: np.ndarray, uniform: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Draw an object, a moment and the signs for each meeting.

    An object whose track nowhere crosses the satellite's at 20 degrees or more, as of two orbits
    over the poles, is tilted by as little as lets it.

    Args:
        r, v: ``[B, S, 3]`` the satellite's states at the moments to choose from, which are a
            revolution or more: near the equator every object can be met.
        uniform: ``[B, N, TRIES + 3]``.

    Returns:
        The moments ``[B, N]`` int, sorted, and velocities there ``[B, N, 3]`` m/s.
    """
    which = (uniform[..., :TRIES] * len(catalogue.a)).astype(np.int64)
    a, e, inc = _taken(catalogue, np.linalg.norm(r, axis=-1).mean(axis=1), which)
    sign = np.array([1.0, -1.0])
    flat = _allowed(r[:, None], v[:, None], inc, sign)
    rows, objects = np.nonzero(~flat.any(axis=-1))
    if len(rows):
        inc[rows, objects] = _tilted(r[rows], v[rows], inc[rows, objects])
        flat[rows, objects] = _allowed(r[rows], v[rows], inc[rows, objects], sign)
    count = flat.sum(axis=-1)
    wanted = (uniform[..., TRIES] * count).astype(np.int64)
    chosen = (flat.cumsum(axis=-1) == wanted[..., None] + 1).argmax(axis=-1)
    order = np.argsort(chosen // 2, axis=1, kind="stable")
    a, e, inc, chosen, climbs = (
        np.take_along_axis(x, order, axis=1) for x in (a, e, inc, chosen, uniform[..., -1])
    )
    moment, side = chosen // 2, sign[chosen % 2]
    place = np.take_along_axis(r, moment[..., None], axis=1)
    return moment, _velocity(place, a, e, inc, side, np.where(climbs < 0.5, 1.0, -1.0))


def _taken(catalogue: Catalogue, radius: np.ndarray, which: np.ndarray) -> tuple[np.ndarray, ...]:
    """Semi-major axis, eccentricity and inclination ``[B, N]`` of those that are taken."""
    a, e = catalogue.a[which], catalogue.e[which]
    away = np.maximum(np.abs(radius[:, None, None] - a) - a * e, 0.0)
    best = away.argmin(axis=-1)[..., None]
    each = (a, e, catalogue.inc[which])
    return tuple(np.take_along_axis(x, best, axis=-1)[..., 0] for x in each)


def _level(r: np.ndarray, inc: np.ndarray, side: np.ndarray) -> np.ndarray:
    """Level unit vectors ``[..., 3]`` along an orbit of this inclination; NaN where it isn't.

    Args:
        r: ``[..., 3]``. side: 1 northwards, -1 southwards.
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
    """Which moments and signs make both tracks cross at a large enough angle, ``[..., 2 S]`` bool.

    Args:
        r, v: ``[..., S, 3]``. inc: ``[...]``. sign: ``[2]``.
    """
    cosine = _heading_cosine(r, v, inc[..., None, None], sign)
    allowed = np.abs(cosine) <= _COS_LEAST_ANGLE  # NaN, where the orbit doesn't reach, isn't
    return allowed.reshape(*inc.shape, -1)


def _tilted(r: np.ndarray, v: np.ndarray, inc: np.ndarray) -> np.ndarray:
    """The inclinations ``[K]`` nearest to ``inc`` that cross the satellite's track at 20 degrees.

    Args:
        r, v: ``[K, S, 3]``. inc: ``[K]`` rad.
    """
    up = r / np.linalg.norm(r, axis=-1, keepdims=True)
    along = orbits.frame(r, v)[..., 1, :]
    across = orbits.cross(up, along)
    angle = _LEAST_ANGLE + _MARGIN
    turn = np.array([angle, np.pi - angle, np.pi + angle, -angle])[:, None]
    way = np.cos(turn) * along[..., None, :] + np.sin(turn) * across[..., None, :]  # [K, S, 4, 3]
    found = np.arccos(np.clip(orbits.cross(up[..., None, :], way)[..., 2], -1.0, 1.0))
    found = found.reshape(len(inc), -1)
    best = np.abs(found - inc[:, None]).argmin(axis=1)
    return found[np.arange(len(inc)), best]


def _heading_cosine(r: np.ndarray, v: np.ndarray, inc: np.ndarray, sign: np.ndarray) -> np.ndarray:
    """Cosine of the angle between both tracks, for either sign, ``[..., S, 2]``."""
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
    """At ``r`` ``[B, N, 3]``, on the ellipse or one that is raised or lowered to it."""
    radius = np.linalg.norm(r, axis=-1)
    half = a * (1.0 - e * e)
    cosine = np.clip((half / radius - 1.0) / np.maximum(e, 1e-12), -1.0, 1.0)
    half = radius * (1.0 + e * cosine)
    speed = np.sqrt(MU / half)
    sweep = speed * (1.0 + e * cosine)
    climb = climbs * speed * e * np.sqrt(1.0 - cosine * cosine)
    up = r / radius[..., None]
    return sweep[..., None] * _level(r, inc, side) + climb[..., None] * up

"""Propagates near-circular Earth orbits with two-body motion and J2, vectorised over arrays.

Mean elements move at the constant secular rates of J2. The periodic part of J2 within a revolution
is added to position and velocity. Both are of first order in J2, as in Brouwer's theory. The
periodic terms are those for near-circular orbits in Hoots and Roehrich, Spacetrack Report No. 3
(1980). The model omits higher harmonics, drag, Sun and Moon. Lengths are in metres, times in
seconds, angles in radians; the frame is inertial, with z along the Earth's axis.

Every function takes arrays of any common shape and treats each orbit independently.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

MU = 3.986004418e14  # m^3/s^2, of the Earth
EARTH_RADIUS = 6_378_137.0  # m, at the equator
EARTH_RATE = 7.292115e-5  # rad/s
J2 = 1.08262668e-3
_HALF_J2 = 0.5 * J2 * EARTH_RADIUS**2  # m^2
_INVERSION_STEPS = 2  # each reduces the error to a few thousandths


class Elements(NamedTuple):
    """Mean elements at time 0, with a vector of eccentricity to avoid a singularity at circles."""

    a: np.ndarray  # semi-major axis, m
    ex: np.ndarray  # e cos(argument of perigee)
    ey: np.ndarray  # e sin(argument of perigee)
    inc: np.ndarray  # inclination
    raan: np.ndarray  # right ascension of the ascending node
    lon: np.ndarray  # mean argument of latitude: mean anomaly + argument of perigee


class Drifts(NamedTuple):
    """Secular rates of :class:`Elements`, rad/s."""

    perigee: np.ndarray
    raan: np.ndarray
    lon: np.ndarray


def drifts(elements: Elements) -> Drifts:
    """Return the secular rates from two-body motion and J2."""
    a, ex, ey, inc, *_ = elements
    root = np.sqrt(1.0 - ex * ex - ey * ey)
    n = np.sqrt(MU / a) / a
    k = 3.0 * _HALF_J2 / (a * root * root) ** 2 * n
    sin2 = np.sin(inc) ** 2
    perigee = k * (2.0 - 2.5 * sin2)
    return Drifts(perigee, -k * np.cos(inc), n + k * root * (1.0 - 1.5 * sin2) + perigee)


def moved(elements: Elements, moving: Drifts, seconds: np.ndarray | float) -> Elements:
    """Return the mean elements ``seconds`` later (or earlier, if negative)."""
    turn = moving.perigee * seconds
    cos, sin = np.cos(turn), np.sin(turn)
    return elements._replace(
        ex=elements.ex * cos - elements.ey * sin,
        ey=elements.ex * sin + elements.ey * cos,
        raan=elements.raan + moving.raan * seconds,
        lon=elements.lon + moving.lon * seconds,
    )


def position(mean: Elements) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ``x, y, z`` at the time of the elements."""
    cos_u, sin_u, cos_tilt, sin_tilt, radius, node = _bent(mean, _ellipse(mean))
    cos_node, sin_node, level = np.cos(node), np.sin(node), sin_u * cos_tilt
    return (
        radius * (cos_u * cos_node - level * sin_node),
        radius * (cos_u * sin_node + level * cos_node),
        radius * sin_u * sin_tilt,
    )


def state(mean: Elements) -> tuple[np.ndarray, np.ndarray]:
    """Return position and velocity ``[..., 3]`` at the time of the elements."""
    ellipse = _ellipse(mean)
    cos_u, sin_u, cos_tilt, sin_tilt, radius, node = _bent(mean, ellipse)
    climb, sweep = _speeds(mean, ellipse)
    cos_node, sin_node = np.cos(node), np.sin(node)

    def axis(along_node: np.ndarray, above: np.ndarray) -> np.ndarray:
        level = above * cos_tilt
        x, y = along_node * cos_node - level * sin_node, along_node * sin_node + level * cos_node
        return np.stack([x, y, above * sin_tilt], axis=-1)

    radial, along = axis(cos_u, sin_u), axis(-sin_u, cos_u)
    return radius[..., None] * radial, climb[..., None] * radial + sweep[..., None] * along


class _Ellipse(NamedTuple):
    """Position on the mean ellipse."""

    cos_u: np.ndarray  # of the argument of latitude
    sin_u: np.ndarray
    near: np.ndarray  # radius / a
    rise: np.ndarray  # e sin(eccentric anomaly)
    root: np.ndarray  # sqrt(1 - e²)


def _ellipse(mean: Elements) -> _Ellipse:
    """Solve Kepler's equation: a first-order solution, then a step of Newton's method.

    The error is of the order of e⁵, below 1e-10 rad for e up to 0.01.
    """
    _, ex, ey, _, _, lon = mean
    anomaly = lon + ex * np.sin(lon) - ey * np.cos(lon)  # the eccentric argument of latitude
    cos, sin = np.cos(anomaly), np.sin(anomaly)
    error = lon - anomaly + ex * sin - ey * cos
    cos, sin = _turned(cos, sin, error / (1.0 - ex * cos - ey * sin))
    root = np.sqrt(1.0 - ex * ex - ey * ey)
    near = 1.0 - ex * cos - ey * sin
    rise = ex * sin - ey * cos
    mixed = rise / (1.0 + root)
    cos_u, sin_u = (cos - ex + ey * mixed) / near, (sin - ey - ex * mixed) / near
    return _Ellipse(cos_u, sin_u, near, rise, root)


def _turned(cos: np.ndarray, sin: np.ndarray, angle: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return cosine and sine of a sum whose second angle is small, exact to its third power."""
    cos_a = 1.0 - 0.5 * angle * angle
    sin_a = angle * (1.0 - angle * angle / 6.0)
    return cos * cos_a - sin * sin_a, sin * cos_a + cos * sin_a


def _bent(mean: Elements, at: _Ellipse) -> tuple[np.ndarray, ...]:
    """Return cosine and sine of argument of latitude and inclination, radius and node, with J2."""
    small = _HALF_J2 / (mean.a * at.root * at.root)  # m
    tiny = small / (mean.a * at.root * at.root)
    cos_i, sin_i = np.cos(mean.inc), np.sin(mean.inc)
    c2 = cos_i * cos_i
    cos_2u, sin_2u = 1.0 - 2.0 * at.sin_u * at.sin_u, 2.0 * at.sin_u * at.cos_u
    radius = mean.a * at.near * (1.0 - 1.5 * tiny * at.root * (3.0 * c2 - 1.0))
    radius = radius + 0.5 * small * (1.0 - c2) * cos_2u
    shift = -0.25 * tiny * (7.0 * c2 - 1.0) * sin_2u
    side = 1.5 * tiny * cos_i
    cos_u, sin_u = _turned(at.cos_u, at.sin_u, shift)
    cos_tilt, sin_tilt = _turned(cos_i, sin_i, side * sin_i * cos_2u)
    return cos_u, sin_u, cos_tilt, sin_tilt, radius, mean.raan + side * sin_2u


def _speeds(mean: Elements, at: _Ellipse) -> tuple[np.ndarray, np.ndarray]:
    """Return radial and transverse speed, m/s, with J2."""
    speed = np.sqrt(MU / mean.a)
    bent = speed * _HALF_J2 / (mean.a * at.root) ** 2
    c2 = np.cos(mean.inc) ** 2
    cos_2u, sin_2u = 1.0 - 2.0 * at.sin_u * at.sin_u, 2.0 * at.sin_u * at.cos_u
    return (
        speed * at.rise / at.near - bent * (1.0 - c2) * sin_2u,
        speed * at.root / at.near + bent * ((1.0 - c2) * cos_2u + 1.5 * (3.0 * c2 - 1.0)),
    )


def cross(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the cross product along the last axis; ``np.cross`` takes twice as long if small."""
    (ax, ay, az), (bx, by, bz) = (np.moveaxis(v, -1, 0) for v in (a, b))
    return np.stack([ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx], axis=-1)


def frame(r: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Return unit vectors ``[..., 3 (radial, along the track, across it), 3]`` at a state."""
    radial = r / np.linalg.norm(r, axis=-1, keepdims=True)
    across = cross(r, v)
    across /= np.linalg.norm(across, axis=-1, keepdims=True)
    return np.stack([radial, cross(across, radial), across], axis=-2)


def mean_elements(r: np.ndarray, v: np.ndarray) -> Elements:
    """Return the mean elements whose :func:`state` is ``r, v`` ``[..., 3]``, to about a decimetre.

    The Kepler orbit of a state differs from the mean elements by the periodic part of J2. A
    fixed-point iteration removes it: each step adds the difference between the Kepler orbits of
    the target state and of the current elements.
    """
    mean = target = kepler_elements(r, v)
    for _ in range(_INVERSION_STEPS):
        current = kepler_elements(*state(mean))
        change = [t - c for t, c in zip(target, current, strict=True)]
        change[4:] = [np.remainder(x + np.pi, 2 * np.pi) - np.pi for x in change[4:]]
        mean = Elements(*(m + c for m, c in zip(mean, change, strict=True)))
    return mean


def kepler_elements(r: np.ndarray, v: np.ndarray) -> Elements:
    """Return elements of the two-body orbit through ``r, v`` ``[..., 3]``, not equatorial."""
    radius = np.linalg.norm(r, axis=-1)
    v2 = np.sum(v * v, axis=-1)
    a = 1.0 / (2.0 / radius - v2 / MU)
    spin = cross(r, v)
    hx, hy, hz = np.moveaxis(spin, -1, 0)
    raan = np.arctan2(hx, -hy)
    inc = np.arctan2(np.hypot(hx, hy), hz)
    node = np.stack([np.cos(raan), np.sin(raan), np.zeros_like(raan)], axis=-1)
    above = cross(spin / np.linalg.norm(spin, axis=-1, keepdims=True), node)
    e = cross(v, spin) / MU - r / radius[..., None]
    ex, ey = np.sum(e * node, axis=-1), np.sum(e * above, axis=-1)
    root = np.sqrt(1.0 - ex * ex - ey * ey)
    x, y = np.sum(r * node, axis=-1) / a, np.sum(r * above, axis=-1) / a
    # x = cos - ex + ey m and y = sin - ey - ex m, m = (ex sin - ey cos) / (1 + root)
    m = np.sum(r * v, axis=-1) / np.sqrt(MU * a) / (1.0 + root)
    anomaly = np.arctan2(y + ey + ex * m, x + ex - ey * m)
    return Elements(a, ex, ey, inc, raan, anomaly - ex * np.sin(anomaly) + ey * np.cos(anomaly))


def displacement(n: np.ndarray, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the displacement by a burn of 1 m/s along the track: radially, and ahead, m.

    From the Clohessy-Wiltshire equations (1960), for a circular orbit.

    Args:
        n: mean motion, rad/s. seconds: time since the burn.
    """
    angle = n * seconds
    return 2.0 / n * (1.0 - np.cos(angle)), (4.0 * np.sin(angle) - 3.0 * angle) / n


def burn(
    elements: Elements, moving: Drifts, where: tuple, speed: np.ndarray, seconds: np.ndarray
) -> None:
    """Apply burns along the track to some orbits, in place.

    Args:
        where: index of the burning satellites. speed: m/s, forwards. seconds: time of the burn.
    """
    before = Elements(*(x[where] for x in elements))
    now = moved(before, Drifts(*(x[where] for x in moving)), seconds)
    ratio = 2.0 * speed * np.sqrt(now.a / MU)
    after = now._replace(
        a=now.a * (1.0 + ratio),
        ex=now.ex + ratio * np.cos(now.lon),
        ey=now.ey + ratio * np.sin(now.lon),
    )
    later = drifts(after)
    new_values = (*moved(after, later, -seconds), *later)
    for to, new in zip((*elements, *moving), new_values, strict=True):
        to[where] = new

"""Draws SSAConjunction episodes: orbits, closest approaches, estimates and true errors.

All randomness of an episode is drawn here, from the episode's own generator; later steps only look
it up. The catalogue orbit of an object passes a point near the protected satellite at the time of
closest approach. Its true position differs by an error drawn from the catalogue's covariance, so
the probabilities that a player computes are the true ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from headrace_ssa import meetings, orbits, risk, tracking
from headrace_ssa.catalogue import Catalogue
from headrace_ssa.orbits import EARTH_RADIUS, Drifts, Elements
from headrace_ssa.tracking import STEP_S, Along

FIRST_APPROACH = 40  # earliest step of a closest approach
OWN_M = 20.0  # standard deviation of the satellite's own position in the encounter plane
SIGMAS = ((50.0, 250.0), (0.002, 0.012), (20.0, 60.0), (20.0, 60.0))
LENGTH_M, WIDTH_M = 2000.0, 100.0


@dataclass
class EpisodeState:
    """State of running episodes, ``[B, …]``, with objects in order of their closest approach."""

    elements: Elements  # [B, 1 + N] mean elements at step 0; the protected satellite is the first
    drifts: Drifts
    earth_angle: np.ndarray  # [B, 1] rad at step 0
    tca: np.ndarray  # [B, N] int, step of the closest approach
    miss: np.ndarray  # [B, N, 2] m in the encounter plane, of catalogue orbits, without any burn
    spread: np.ndarray  # [B, N, 2, 3] projection of the object's own errors to that plane
    push: np.ndarray  # [B, N, 2, 2] projection of radial and along-track moves of the satellite
    path: np.ndarray  # [B, T + 1, N] m, true error along the track at each step
    offset: np.ndarray  # [B, 2, N] m, true error radially and across the track
    own_error: np.ndarray  # [B, N, 2] m, true error of the satellite's own position, in the plane
    noise: np.ndarray  # [B, T, 3] m, errors of measurement: along, radial, across
    track: Along  # [B, N] estimate along the track, at step `seen`
    side: np.ndarray  # [B, 2, N] m, estimated mean of `offset`
    side_var: np.ndarray  # [B, 2, N] m²
    seen: np.ndarray  # [B, N] int, step of the last observation

    def put(self, rows: np.ndarray, other: EpisodeState) -> None:
        """Replace the episodes ``rows`` ``[K]`` int by those of ``other``."""
        for field in fields(self):
            old, new = getattr(self, field.name), getattr(other, field.name)
            pairs = zip(old, new, strict=True) if isinstance(old, tuple) else [(old, new)]
            for to, src in pairs:
                to[rows] = src


def draw(
    rngs: list[np.random.Generator],
    num_objects: int,
    horizon: int,
    catalogue: Catalogue | None = None,
) -> EpisodeState:
    """Draw new episodes, one from each generator.

    Args:
        catalogue: orbits of the objects. None: objects cross the satellite's track at any angle,
            with nearly its speed.
    """
    n, steps = num_objects, horizon
    uniforms = np.stack([rng.random(5 + 9 * n) for rng in rngs])
    sizes = np.cumsum([2, 8 * n, 3 * steps])
    normals = np.stack([rng.standard_normal(sizes[-1] + steps * n) for rng in rngs])
    few, many = uniforms[:, :5].T, uniforms[:, 5:].reshape(-1, 9, n).swapaxes(0, 1)
    shape, errors, noise, forces = np.split(normals, sizes, axis=1)
    errors = errors.reshape(-1, 8, n).swapaxes(0, 1)
    satellite = _satellite(few, shape)
    moving = orbits.drifts(satellite)
    if catalogue is None:
        tca = np.sort(FIRST_APPROACH + (many[0] * (steps + 1 - FIRST_APPROACH)).astype(np.int64))
        there = orbits.state(orbits.moved(satellite, moving, STEP_S * tca))
        velocity = _crossing(there, many[1:3], errors[:2])
    else:
        late = np.stack([rng.random(meetings.draws(n)) for rng in rngs])
        when = np.arange(FIRST_APPROACH, steps + 1)
        r, v = orbits.state(orbits.moved(satellite, moving, STEP_S * when[None]))
        moment, velocity = meetings.velocities(catalogue, r, v, late.reshape(len(rngs), n, -1))
        tca, at = when[moment], moment[..., None]
        there = np.take_along_axis(r, at, axis=1), np.take_along_axis(v, at, axis=1)
    objects, geometry = _encounters(there, velocity, many[3:5])
    at_start = orbits.moved(objects, orbits.drifts(objects), -STEP_S * tca)
    pairs = zip(satellite, at_start, strict=True)
    elements = Elements(*(np.concatenate(pair, axis=-1) for pair in pairs))
    sigma = _between(many[5:9], SIGMAS)
    true = errors[2:6] * sigma
    path = tracking.true_path(
        true[0], true[1], tracking.ACCELERATION * forces.reshape(-1, steps, n)
    )
    zero = np.zeros_like(true[0])
    return EpisodeState(
        elements=elements,
        drifts=orbits.drifts(elements),
        earth_angle=2.0 * np.pi * few[4][:, None],
        tca=tca,
        **geometry,
        path=path,
        offset=true[2:].swapaxes(0, 1),
        own_error=OWN_M * np.moveaxis(errors[6:], 0, -1),
        noise=tracking.SENSOR_M * noise.reshape(-1, steps, 3),
        track=Along(zero, zero.copy(), sigma[0] ** 2, zero.copy(), sigma[1] ** 2),
        side=np.zeros_like(true[2:].swapaxes(0, 1)),
        side_var=sigma[2:].swapaxes(0, 1) ** 2,
        seen=np.zeros_like(tca),
    )


def _between(uniform: np.ndarray, limits: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Scale uniform random numbers ``[K, …]`` in [0, 1) to K intervals."""
    low, high = np.array(limits).T.reshape(2, -1, *[1] * (uniform.ndim - 1))
    return low + (high - low) * uniform


def _satellite(uniform: np.ndarray, normal: np.ndarray) -> Elements:
    """Return the mean elements of the protected satellite, ``[B, 1]``."""
    altitude, inc = _between(uniform[:2], ((600e3, 800e3), (np.radians(50), np.radians(100))))
    ex, ey = 5e-4 * normal.T
    raan, lon = 2.0 * np.pi * uniform[2:4]
    each = (EARTH_RADIUS + altitude, ex, ey, inc, raan, lon)
    return Elements(*(x[:, None] for x in each))


def _crossing(
    there: tuple[np.ndarray, np.ndarray], uniform: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Return velocities ``[B, N, 3]`` of objects that don't come from a catalogue.

    The objects cross the satellite's track at 20 to 160 degrees from either side, at nearly the
    same speed and nearly horizontally.

    Args:
        there: position and velocity of the satellite, ``[B, N, 3]``.
        uniform: ``[2, B, N]`` angle and side. normal: ``[2, B, N]`` climb and speed.
    """
    v = there[1]
    radial, along, across = np.moveaxis(orbits.frame(*there), -2, 0)
    angle = np.radians(20.0 + 140.0 * uniform[0]) * np.where(uniform[1] < 0.5, -1.0, 1.0)
    level = np.cos(angle)[..., None] * along + np.sin(angle)[..., None] * across
    speed = np.linalg.norm(v, axis=-1) * (1.0 + 5e-4 * normal[1])
    return speed[..., None] * (level + (1e-3 * normal[0])[..., None] * radial)


def _encounters(
    there: tuple[np.ndarray, np.ndarray], velocity: np.ndarray, uniform: np.ndarray
) -> tuple[Elements, dict[str, np.ndarray]]:
    """Return mean elements of objects at their closest approaches, and the encounter geometry.

    Args:
        there: position and velocity of the satellite then, ``[B, N, 3]``.
        velocity: velocities of the objects, ``[B, N, 3]`` m/s.
        uniform: ``[2, B, N]`` distance and direction of the miss.
    """
    r, v = there
    satellite_frame = orbits.frame(r, v)
    radial, along, _ = np.moveaxis(satellite_frame, -2, 0)
    axes = risk.plane(velocity - v, radial)
    ahead = np.einsum("bnkx,bnx->kbn", axes, along)
    ahead /= np.hypot(*ahead)
    x, y = (2.0 * uniform[0] - 1.0) * LENGTH_M, (2.0 * uniform[1] - 1.0) * WIDTH_M
    miss = x * ahead + y * np.stack([-ahead[1], ahead[0]])
    objects = orbits.mean_elements(r + np.einsum("kbn,bnkx->bnx", miss, axes), velocity)
    position, velocity = orbits.state(objects)
    axes = risk.plane(velocity - v, radial)
    return objects, {
        "miss": np.einsum("bnkx,bnx->bnk", axes, position - r),
        "spread": np.einsum("bnkx,bnfx->bnkf", axes, orbits.frame(position, velocity)),
        "push": np.einsum("bnkx,bnfx->bnkf", axes, satellite_frame[..., :2, :]),
    }

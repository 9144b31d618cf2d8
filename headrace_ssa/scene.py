"""What an episode begins with: orbits, their closest approaches, what is known, and the truth.

All that is random in an episode is drawn here, from the episode's own generator; later steps only
look it up. An object's catalogue orbit is laid through a point near the protected satellite's at
the time of closest approach; its true position differs by an error drawn from the covariance that
the catalogue tells, so that the probabilities that a player computes are the true ones.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from headrace_ssa import meetings, orbits, risk, tracking
from headrace_ssa.catalogue import Catalogue
from headrace_ssa.orbits import EARTH_RADIUS, Drifts, Elements
from headrace_ssa.tracking import STEP_S, Along

FIRST_APPROACH = 40  # step before which nothing comes close
OWN_M = 20.0  # standard deviation of the satellite's own position in the encounter plane
SIGMAS = ((50.0, 250.0), (0.002, 0.012), (20.0, 60.0), (20.0, 60.0))
LENGTH_M, WIDTH_M = 2000.0, 100.0


@dataclass
class Scene:
    """Running episodes, ``[B, …]``; objects are numbered in order of their closest approach."""

    elements: Elements  # [B, 1 + N] mean elements at step 0; the protected satellite is the first
    drifts: Drifts
    earth_angle: np.ndarray  # [B, 1] rad at step 0
    tca: np.ndarray  # [B, N] int, step of the closest approach
    miss: np.ndarray  # [B, N, 2] m in the encounter plane, of catalogue orbits, without any burn
    spread: np.ndarray  # [B, N, 2, 3] how the object's own errors show in that plane
    push: np.ndarray  # [B, N, 2, 2] how radial and along-track moves of the satellite show there
    path: np.ndarray  # [B, T + 1, N] m, true error along the track at each step
    offset: np.ndarray  # [B, 2, N] m, true error radially and across the track
    own: np.ndarray  # [B, N, 2] m, true error of the satellite's own position, in the plane
    noise: np.ndarray  # [B, T, 3] m, errors of measurement: along, radial, across
    track: Along  # [B, N] known along the track, at step `seen`
    side: np.ndarray  # [B, 2, N] m, known mean of `offset`
    side_var: np.ndarray  # [B, 2, N] m²
    seen: np.ndarray  # [B, N] int, step of the last observation

    def put(self, rows: np.ndarray, other: Scene) -> None:
        """Replace episodes, ``rows`` ``[K]`` int, by those of ``other``."""
        for field in fields(self):
            mine, new = getattr(self, field.name), getattr(other, field.name)
            pairs = zip(mine, new, strict=True) if isinstance(mine, tuple) else [(mine, new)]
            for to, src in pairs:
                to[rows] = src


def draw(
    rngs: list[np.random.Generator],
    num_objects: int,
    horizon: int,
    catalogue: Catalogue | None = None,
) -> Scene:
    """New episodes, one from each generator.

    Args:
        catalogue: whose orbits the objects are on; None: they cross the satellite's track at any
            angle, with nearly its speed.
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
    return Scene(
        elements=elements,
        drifts=orbits.drifts(elements),
        earth_angle=2.0 * np.pi * few[4][:, None],
        tca=tca,
        **geometry,
        path=path,
        offset=true[2:].swapaxes(0, 1),
        own=OWN_M * np.moveaxis(errors[6:], 0, -1),
        noise=tracking.SENSOR_M * noise.reshape(-1, steps, 3),
        track=Along(zero, zero.copy(), sigma[0] ** 2, zero.copy(), sigma[1] ** 2),
        side=np.zeros_like(true[2:].swapaxes(0, 1)),
        side_var=sigma[2:].swapaxes(0, 1) ** 2,
        seen=np.zeros_like(tca),
    )


def _between(uniform: np.ndarray, limits: tuple[tuple[float, float], ...]) -> np.ndarray:
    """Uniform numbers ``[K, …]`` in [0, 1) stretched to K intervals."""
    low, high = np.array(limits).T.reshape(2, -1, *[1] * (uniform.ndim - 1))
    return low + (high - low) * uniform


def _satellite(uniform: np.ndarray, normal: np.ndarray) -> Elements:
    """The protected satellite's mean elements, ``[B, 1]``."""
    altitude, inc = _between(uniform[:2], ((600e3, 800e3), (np.radians(50), np.radians(100))))
    ex, ey = 5e-4 * normal.T
    raan, lon = 2.0 * np.pi * uniform[2:4]
    each = (EARTH_RADIUS + altitude, ex, ey, inc, raan, lon)
    return Elements(*(x[:, None] for x in each))


def _crossing(
    there: tuple[np.ndarray, np.ndarray], uniform: np.ndarray, normal: np.ndarray
) -> np.ndarray:
    """Velocities of objects ``[B, N, 3]`` that don't come from a catalogue.

    They cross the satellite's track at an angle of 20 to 160 degrees from either side, with nearly
    the same speed and nearly level.

    Args:
        there: the satellite's position and velocity, ``[B, N, 3]``.
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
    """Objects' mean elements at their closest approaches, and how errors show in their planes.

    Args:
        there: the satellite's position and velocity then, ``[B, N, 3]``.
        velocity: of the objects, ``[B, N, 3]``.
        uniform: ``[2, B, N]`` distance and direction of the miss.
    """
    r, v = there
    own = orbits.frame(r, v)
    radial, along, _ = np.moveaxis(own, -2, 0)
    axes = risk.plane(velocity - v, radial)
    ahead = np.einsum("bnkx,bnx->kbn", axes, along)
    ahead /= np.hypot(*ahead)
    x, y = (2.0 * uniform[0] - 1.0) * LENGTH_M, (2.0 * uniform[1] - 1.0) * WIDTH_M
    wanted = x * ahead + y * np.stack([-ahead[1], ahead[0]])
    objects = orbits.mean_elements(r + np.einsum("kbn,bnkx->bnx", wanted, axes), velocity)
    position, velocity = orbits.state(objects)
    axes = risk.plane(velocity - v, radial)
    return objects, {
        "miss": np.einsum("bnkx,bnx->bnk", axes, position - r),
        "spread": np.einsum("bnkx,bnfx->bnkf", axes, orbits.frame(position, velocity)),
        "push": np.einsum("bnkx,bnfx->bnkf", axes, own[..., :2, :]),
    }

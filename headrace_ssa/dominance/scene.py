"""State of OrbitalDominance games, and the draw of new ones.

All randomness of a game is drawn at its reset, from its own generator: orbits, the Sun, initial
errors of the tracks, and errors of all measurements. Both sides have the same distributions.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from headrace_ssa.dominance import rules
from headrace_ssa.dominance.motion import NO_J2, Rates

CENTRE_M, APART_M = 6_000.0, 3_000.0  # along the track: of an asset, of an inspector from its asset
ROUND_M, ACROSS_M = (200.0, 2_000.0), 1_000.0  # half of the ellipse's length; across the track
SUN_ELEVATION = np.radians(45.0)  # maximum at which each revolution still passes through shadow


@dataclass
class Scene:
    """State of running games, ``[G, 2 sides, n satellites, …]``; satellite 0 is the asset."""

    state: np.ndarray  # [G, 2, n, 6] m and m/s, the truth
    station: np.ndarray  # [G, 2, 6] where each asset would be without burns
    burns: np.ndarray  # [G, 2, n] int, left
    jams: np.ndarray  # [G, 2, n] int, left
    target: np.ndarray  # [G, 2, n] int, the other side's satellite that a sensor follows; -1: none
    sees: np.ndarray  # [G, 2, n] bool, whether its measurement of this step was received
    mean: np.ndarray  # [G, 2, n, 6] track of each satellite of the other side
    cov: np.ndarray  # [G, 2, n, 6, 6]
    sun: np.ndarray  # [G, 2] elevation, and angle at step 0, rad
    noise: np.ndarray  # [G, T, 2, n, 3] errors of sensors, in standard deviations
    survey: np.ndarray  # [G, S, 2, n, 3] of the surveys from the ground
    time: np.ndarray  # [G] int, steps so far
    score: np.ndarray  # [G, 2] points so far
    rates: Rates  # of all games

    def put(self, rows: np.ndarray, other: Scene) -> None:
        """Replace the games ``rows`` ``[K]`` int by those of ``other``."""
        for field in fields(self):
            if field.name != "rates":
                getattr(self, field.name)[rows] = getattr(other, field.name)


def draw(rngs: list[np.random.Generator], n: int, horizon: int, rates: Rates = NO_J2) -> Scene:
    """Draw new games, one from each generator."""
    games, surveys = len(rngs), horizon // rules.SURVEY_STEPS
    shapes = (2, n, 6), (horizon, 2, n, 3), (surveys, 2, n, 3)
    sizes = np.cumsum([np.prod(shape) for shape in shapes])
    uniform = np.stack([rng.random(2 + 2 * n * 6) for rng in rngs])
    normal = np.stack([rng.standard_normal(sizes[-1]) for rng in rngs])
    first, noise, survey = (
        part.reshape(games, *shape)
        for part, shape in zip(np.split(normal, sizes[:-1], axis=1), shapes, strict=True)
    )
    state = _orbits(uniform[:, 2:].reshape(games, 2, n, 6), rates)
    spread = np.repeat([rules.FIRST_M, rules.FIRST_MS], 3)
    cov = np.broadcast_to(np.diag(spread**2), (games, 2, n, 6, 6)).copy()
    sun = np.stack([SUN_ELEVATION * (2.0 * uniform[:, 0] - 1.0), 2 * np.pi * uniform[:, 1]], -1)
    burns = np.full((games, 2, n), rules.INSPECTOR_BURNS)
    burns[..., 0] = rules.ASSET_BURNS
    return Scene(
        state=state,
        station=state[:, :, 0].copy(),
        burns=burns,
        jams=np.full((games, 2, n), rules.JAMS),
        target=np.full((games, 2, n), -1),
        sees=np.zeros((games, 2, n), bool),
        mean=state[:, ::-1] + spread * first,
        cov=cov,
        sun=sun,
        noise=noise,
        survey=survey,
        time=np.zeros(games, np.int64),
        score=np.zeros((games, 2)),
        rates=rates,
    )


def _orbits(uniform: np.ndarray, rates: Rates = NO_J2) -> np.ndarray:
    """Return states ``[G, 2, n, 6]`` on ellipses without drift, from uniform numbers of that shape.

    In the frame of the reference orbit, a satellite without drift moves on an ellipse. It is twice
    as long along the track as it is high (nearly, with J2). The satellite also oscillates across
    the track.
    """
    place, size, phase, across, swing = np.moveaxis(uniform, -1, 0)[:5]
    centre = 2.0 * place - 1.0
    centre = CENTRE_M * centre[..., :1] + APART_M * np.where(
        np.arange(uniform.shape[2]) > 0, centre, 0.0
    )
    low, high = ROUND_M
    size, across = low + (high - low) * size, ACROSS_M * across
    phase, swing = 2.0 * np.pi * phase, 2.0 * np.pi * swing
    cos, sin, n = np.cos(phase), np.sin(phase), rates.ellipse
    high = 0.5 * size / (rates.turn / n)
    return np.stack(
        [
            high * sin,
            centre + size * cos,
            across * np.sin(swing),
            high * n * cos,
            -size * n * sin,
            across * rates.across * np.cos(swing),
        ],
        axis=-1,
    )

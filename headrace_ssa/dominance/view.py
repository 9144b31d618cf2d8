"""Observations of OrbitalDominance: fixed size, in [-1, 1], with a function to decode them."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from headrace_ssa.dominance import play, rules
from headrace_ssa.dominance.motion import Rates, is_lit, propagation
from headrace_ssa.dominance.scene import Scene

PLACE_M, SPEED_MS = 40_000.0, 20.0
"""Position and speed that are encoded as 1; larger values are clipped."""
AHEAD = (0, 4, 12, 24)
"""Steps ahead at which relative positions are predicted as if neither satellite burnt."""
LIGHT = (0, 4, 8, 16)
"""Steps ahead at which the observation includes whether the Sun shines."""
_STATE = np.repeat([PLACE_M, SPEED_MS], 3)
_NEAR_M = 200.0  # scale of relative positions: about linear below it, logarithmic above
_FAR = np.arcsinh(PLACE_M / _NEAR_M)


class Observation(NamedTuple):
    """Parts of an observation; positions in m, speeds in m/s, all in the moving frame."""

    left: np.ndarray  # [B] share of the game left
    survey: np.ndarray  # [B] share of the time between surveys until the next one
    sun: np.ndarray  # [B, 3] unit vector to the Sun
    light: np.ndarray  # [B, 4] whether it shines, at the steps of LIGHT
    own: np.ndarray  # [B, n, 6] own satellites, the asset first
    burns: np.ndarray  # [B, n] share left
    jams: np.ndarray  # [B, n] share left
    sees: np.ndarray  # [B, n] whether the last measurement of its sensor was received
    target: np.ndarray  # [B, n, n] whether it follows that satellite of the other side
    off: np.ndarray  # [B, 6] the asset relative to its station
    other: np.ndarray  # [B, n, 6] tracks of the other side's satellites, its asset first
    spread_m: np.ndarray  # [B, n] their standard deviations per direction
    spread_ms: np.ndarray  # [B, n]
    pairs: np.ndarray  # [B, n, n, 4, 3] asinh(m / 200) / asinh(200), from own to other, at AHEAD


def size(n: int) -> int:
    """Return the size of an observation with ``n`` satellites per side."""
    return 11 + len(LIGHT) + n * (9 + n) + n * 8 + n * n * 3 * len(AHEAD)


def observe(at: Scene, horizon: int) -> np.ndarray:
    """Return the observations ``[G, 2, size]`` float32."""
    games, _, n = at.burns.shape
    sun = play.sun_now(at)
    most = np.where(np.arange(n) > 0, rules.INSPECTOR_BURNS, rules.ASSET_BURNS)
    off = (at.state[:, :, 0] - at.station) / (_STATE / 4.0)
    variances = np.diagonal(at.cov, axis1=-2, axis2=-1)
    between = at.mean[:, :, None] - at.state[:, :, :, None]  # [G, 2, n own, n other, 6]
    pairs = np.arcsinh((between.reshape(-1, 6) @ _later(at.rates).T) / _NEAR_M) / _FAR
    clock = [1.0 - at.time / horizon, 1.0 - at.time % rules.SURVEY_STEPS / rules.SURVEY_STEPS]
    lights = [is_lit(play.sun_now(at, steps)) for steps in LIGHT]
    common = np.column_stack([*clock, sun, *lights])
    parts = [
        np.repeat(common[:, None], 2, axis=1),
        at.state / _STATE,
        at.burns / most,
        at.jams / rules.JAMS,
        at.sees,
        at.target[..., None] == np.arange(n),
        off,
        at.mean / _STATE,
        _log(np.sqrt(variances[..., :3].mean(axis=-1)), PLACE_M),
        _log(1000.0 * np.sqrt(variances[..., 3:].mean(axis=-1)), 1000.0 * SPEED_MS),
        pairs,
    ]
    out = np.empty((games, 2, size(n)), np.float32)
    np.concatenate([np.reshape(p, (games, 2, -1)) for p in parts], axis=2, out=out)
    return np.clip(out, -1.0, 1.0, out=out)


def read(obs: np.ndarray) -> Observation:
    """Split observations ``[B, size]`` into their parts and undo the scaling."""
    n = next(n for n in range(1, 1000) if size(n) >= obs.shape[1])
    shapes = [(), (), (3,), (len(LIGHT),), (n, 6), (n,), (n,), (n,), (n, n), (6,), (n, 6), (n,),
              (n,), (n, n, len(AHEAD), 3)]  # fmt: skip
    ends = np.cumsum([int(np.prod(shape)) for shape in shapes])
    columns = np.split(obs.astype(np.float64), ends[:-1], axis=1)
    seen = Observation(
        *(c.reshape(len(obs), *shape) for c, shape in zip(columns, shapes, strict=True))
    )
    return seen._replace(
        own=seen.own * _STATE,
        off=seen.off * (_STATE / 4.0),
        other=seen.other * _STATE,
        spread_m=np.expm1(seen.spread_m * np.log1p(PLACE_M)),
        spread_ms=np.expm1(seen.spread_ms * np.log1p(1000.0 * SPEED_MS)) / 1000.0,
    )


@functools.cache
def _later(rates: Rates) -> np.ndarray:
    """Return the matrix ``[12, 6]`` from a state to its positions at AHEAD."""
    return np.concatenate([propagation(rules.STEP_S * steps, rates)[:3] for steps in AHEAD])


def _log(values: np.ndarray, most: float) -> np.ndarray:
    """Scale values from 0 to ``most`` logarithmically to [0, 1]."""
    return np.log1p(values) / np.log1p(most)

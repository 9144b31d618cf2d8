"""Predicts positions and collision risks of SSAConjunction, and encodes them as observations."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace_ssa import orbits, risk, sensors, tracking
from headrace_ssa.scene import OWN_M, EpisodeState
from headrace_ssa.tracking import STEP_S, Along

RADIUS_M = 60.0
"""Combined radius of the satellite and an object: a shorter miss is a collision."""
BURN_MS = 0.03
"""Change of speed by one burn, m/s."""
GLOBALS, FEATURES = 8, 8  # features of the episode, which come first; features of each object
SOON = 30
"""Steps (an hour in all) for which the observation also has a separate risk."""
_FLOOR = 1e-8  # lower limit of risks in observations


@dataclass(frozen=True)
class Outlook:
    """Predictions for each episode ``[B]`` and object ``[N]``, now and at the closest approach."""

    position: tuple[np.ndarray, np.ndarray, np.ndarray]  # [B, 1 + N] m, satellite first
    togo: np.ndarray  # [B, N] int, steps to the closest approach; 0 or less if it is over
    visible: np.ndarray  # [B, N] bool, a radar sees the object before its closest approach
    along_m: np.ndarray  # [B, N] standard deviation along the track now
    miss_m: np.ndarray  # [B, N] standard deviation of the miss, geometric mean of both axes
    pushed: np.ndarray  # [2, B, N] m, move of the satellite in the planes by a burn forwards now
    risks: np.ndarray  # [3, B, N] of a collision: no burn, a burn forwards, backwards
    listed: np.ndarray  # [B, N] int, indices of the objects, the greatest risk first

    @property
    def coming(self) -> np.ndarray:
        """Return whether the closest approach is still ahead, ``[B, N]`` bool."""
        return self.togo > 0


def look_ahead(at: EpisodeState, time: np.ndarray, shift: np.ndarray) -> Outlook:
    """Propagate every object and compute visibility and the risk of each closest approach.

    Args:
        time: ``[B]`` steps of the episodes so far.
        shift: ``[B, N, 2]`` m, change of the miss by burns so far.
    """
    now = time[:, None]
    x, y, z = orbits.position(orbits.moved(at.elements, at.drifts, STEP_S * now))
    earth = at.earth_angle + orbits.EARTH_RATE * STEP_S * now
    togo = at.tca - now
    coming = togo > 0
    track = tracking.predicted(at.track, now - at.seen)
    mean, variance = _miss(at, tracking.predicted(track, np.maximum(togo, 0)), shift)
    n = np.sqrt(orbits.MU / at.elements.a[:, :1] ** 3)
    radial, along = orbits.displacement(n, STEP_S * togo)
    pushed = BURN_MS * np.stack(
        [p[..., 0] * radial + p[..., 1] * along for p in np.moveaxis(at.push, 2, 0)]
    )
    plans = np.stack([mean, mean - pushed, mean + pushed], axis=1)
    risks = risk.collision_probability(plans, variance, RADIUS_M, coming)
    return Outlook(
        position=(x, y, z),
        togo=togo,
        visible=sensors.visible(x[:, 1:], y[:, 1:], z[:, 1:], earth) & coming,
        along_m=np.sqrt(track.var),
        miss_m=(variance[0] * variance[2] - variance[1] ** 2) ** 0.25,
        pushed=pushed,
        risks=risks,
        listed=np.argsort(np.where(coming, -risks[0], 1.0), axis=1, kind="stable"),
    )


def _miss(
    at: EpisodeState, then: Along, shift: np.ndarray
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Return mean ``[2, B, N]`` and variance (xx, xy, yy) of the misses in the encounter planes.

    Args:
        then: estimates along the track at the closest approaches.
    """
    means = (at.side[:, 0], then.mean, at.side[:, 1])
    variances = (at.side_var[:, 0], then.var, at.side_var[:, 1])
    x, y = np.moveaxis(at.spread, 2, 0)

    def total(values: list[np.ndarray]) -> np.ndarray:
        return values[0] + values[1] + values[2]

    mean = [
        (at.miss - shift)[..., i] + total([p[..., f] * means[f] for f in range(3)])
        for i, p in enumerate((x, y))
    ]
    xx, xy, yy = (
        total([p[..., f] * q[..., f] * variances[f] for f in range(3)])
        for p, q in ((x, x), (x, y), (y, y))
    )
    return np.stack(mean), (xx + OWN_M**2, xy, yy + OWN_M**2)


def observe(
    outlook: Outlook, left: np.ndarray, burns: np.ndarray, alarms: np.ndarray, horizon: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return observations ``[B, 8 + 8 N]`` float32 and action masks ``[B, N + 3]`` bool.

    Args:
        left, burns: ``[B]`` shares of time and burns left.
        alarms: ``[B, N]`` burns because of each object, as shares.
        horizon: steps of an episode.
    """
    at, num_envs = outlook, len(left)
    rows = np.arange(num_envs)[:, None]
    numbers = np.stack(
        [
            at.togo / horizon,
            at.visible,
            *(1.0 + np.log10(np.maximum(at.risks, _FLOOR)) / 8.0),
            0.25 * np.log10(1.0 + at.along_m),
            0.25 * np.log10(1.0 + at.miss_m),
            alarms,
        ],
        axis=-1,
    )
    numbers *= at.coming[..., None]
    obs = np.empty((num_envs, GLOBALS + numbers[0].size), np.float32)
    obs[:, 0], obs[:, 1] = left, burns
    safe = 1.0 - at.risks
    obs[:, 2:5] = 1.0 - safe.prod(axis=-1).T
    obs[:, 5:GLOBALS] = 1.0 - np.where(at.togo <= SOON, safe, 1.0).prod(axis=-1).T
    obs[:, GLOBALS:] = numbers[rows, at.listed].reshape(num_envs, -1)
    can_burn = (burns > 0) & at.coming.any(axis=1)
    looks = at.visible[rows, at.listed]
    mask = np.column_stack([np.ones(num_envs, bool), looks, can_burn, can_burn])
    return np.minimum(obs, 1.0, out=obs), mask

"""Simulates a step of OrbitalDominance: commands, motion, collisions and measurements."""

from __future__ import annotations

import numpy as np

from headrace_ssa.dominance import rules, tracks
from headrace_ssa.dominance.motion import is_lit, propagation, sun_direction
from headrace_ssa.dominance.scene import Scene

_COS_FIELD, _COS_SUN = np.cos(np.radians([rules.FIELD_DEG, rules.SUN_DEG]))


def sun_now(at: Scene, steps: int = 0) -> np.ndarray:
    """Return unit vectors ``[G, 3]`` to the Sun, now or ``steps`` later."""
    seconds = rules.STEP_S * (at.time + steps)
    return sun_direction(at.sun[:, 0], at.sun[:, 1] + at.rates.turn * seconds)


def mask(at: Scene) -> np.ndarray:
    """Return the allowed actions, ``[G, 2, actions]`` bool: burns and jams must be left."""
    games, _, n = at.burns.shape
    actions = rules.Actions(n)
    allowed = np.ones((games, 2, actions.count), bool)
    burns = np.repeat(at.burns > 0, len(rules.DIRECTIONS), axis=2)
    allowed[..., 1 : actions.first_point] = burns
    points = at.target[..., None] != np.arange(n)
    allowed[..., actions.first_point : actions.first_jam] = points.reshape(games, 2, n * n)
    allowed[..., actions.first_jam :] = at.jams > 0
    return allowed


def command(at: Scene, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Apply allowed actions ``[G, 2]``.

    Returns:
        burnt ``[G, 2]`` bool; jamming ``[G, 2, n]`` bool, the satellites that jam in this step.
    """
    n = at.burns.shape[2]
    actions = rules.Actions(n)
    burnt = (chosen > 0) & (chosen < actions.first_point)
    games, sides = np.nonzero(burnt)
    which, direction = np.divmod(chosen[games, sides] - 1, len(rules.DIRECTIONS))
    at.state[games, sides, which, 3:] += rules.BURN_MS * rules.DIRECTIONS[direction]
    at.burns[games, sides, which] -= 1
    games, sides = np.nonzero((chosen >= actions.first_point) & (chosen < actions.first_jam))
    which, target = np.divmod(chosen[games, sides] - actions.first_point, n)
    at.target[games, sides, which] = target
    jamming = chosen[..., None] == actions.first_jam + np.arange(n)
    at.jams -= jamming
    return burnt, jamming


def move(at: Scene) -> np.ndarray:
    """Move all satellites by a step; return whether two of both sides collided, ``[G]`` bool."""
    phi = propagation(rules.STEP_S, at.rates)
    before = at.state[:, 0, :, None, :3] - at.state[:, 1, None, :, :3]
    at.state = (at.state.reshape(-1, 6) @ phi.T).reshape(at.state.shape)
    at.station = (at.station.reshape(-1, 6) @ phi.T).reshape(at.station.shape)
    mean, cov = tracks.predicted(
        at.mean.reshape(-1, 6), at.cov.reshape(-1, 6, 6), phi, rules.KICK_MS
    )
    at.mean, at.cov = mean.reshape(at.mean.shape), cov.reshape(at.cov.shape)
    at.time += 1
    after = at.state[:, 0, :, None, :3] - at.state[:, 1, None, :, :3]
    near = closest(before, after) < rules.COLLISION_M
    return np.any(near, axis=(1, 2))


def closest(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    """Return the least distance ``[...]``, m, from 0 of a segment between points ``[..., 3]``."""
    way = after - before
    length2 = np.maximum((way * way).sum(axis=-1), 1e-12)
    share = np.clip(-(before * way).sum(axis=-1) / length2, 0.0, 1.0)
    return np.linalg.norm(before + share[..., None] * way, axis=-1)


def sense(at: Scene, jamming: np.ndarray) -> np.ndarray:
    """Measure, update the tracks, and return the number of inspecting sensors ``[G, 2]``."""
    games, _, n = at.burns.shape
    followed = np.maximum(at.target, 0)[..., None]
    others = at.state[:, ::-1, :, :3]
    real = np.take_along_axis(others, followed, axis=2) - at.state[..., :3]
    believed = np.take_along_axis(at.mean[..., :3], followed, axis=2) - at.state[..., :3]
    away = np.linalg.norm(real, axis=-1)
    aim = (real * believed).sum(axis=-1) / np.maximum(away * np.linalg.norm(believed, axis=-1), 1.0)
    sun = sun_now(at)
    glare = (real * sun[:, None, None]).sum(axis=-1) > _COS_SUN * away
    seen = (at.target >= 0) & (away <= rules.SENSOR_RANGE_M) & (aim >= _COS_FIELD) & ~glare
    seen &= is_lit(sun)[:, None, None]
    at.sees = seen & ~jammed(at, jamming)
    sigma = rules.NOISE_M + rules.NOISE_PER_RANGE * away
    now = np.arange(games), at.time - 1
    for k in range(n):  # two sensors may follow the same satellite
        rows, sides = np.nonzero(at.sees[:, :, k])
        track = rows, sides, at.target[rows, sides, k]
        error = sigma[rows, sides, k]
        place = others[track] + error[:, None] * at.noise[now][rows, sides, k]
        at.mean[track], at.cov[track] = tracks.observed(at.mean[track], at.cov[track], place, error)
    _survey(at)
    return (at.sees & (at.target == 0) & (away <= rules.INSPECTION_M)).sum(axis=2)


def jammed(at: Scene, jamming: np.ndarray) -> np.ndarray:
    """Return which satellites lose their measurements to a near jammer, ``[G, 2, n]`` bool."""
    result = np.zeros(jamming.shape, bool)
    rows, sides, which = np.nonzero(jamming)
    place = at.state[rows, sides, which, :3]
    away = np.linalg.norm(at.state[rows, 1 - sides, :, :3] - place[:, None], axis=-1)
    result[rows, 1 - sides] = away <= rules.JAM_RANGE_M  # a side has at most one jammer
    return result


def _survey(at: Scene) -> None:
    """Update the tracks with ground measurements of all satellites in the games that are due."""
    rows = np.flatnonzero(at.time % rules.SURVEY_STEPS == 0)
    if not len(rows):
        return
    errors = at.survey[rows, at.time[rows] // rules.SURVEY_STEPS - 1]
    place = at.state[rows, ::-1, :, :3] + rules.SURVEY_M * errors
    mean, cov = tracks.observed(
        at.mean[rows].reshape(-1, 6),
        at.cov[rows].reshape(-1, 6, 6),
        place.reshape(-1, 3),
        np.array(rules.SURVEY_M),
    )
    at.mean[rows] = mean.reshape(at.mean[rows].shape)
    at.cov[rows] = cov.reshape(at.cov[rows].shape)


def has_custody(at: Scene) -> np.ndarray:
    """Return whether a side's track of the other side's asset is accurate, ``[G, 2]`` bool."""
    error = at.mean[:, :, 0, :3] - at.state[:, ::-1, 0, :3]
    return np.linalg.norm(error, axis=-1) < rules.CUSTODY_M


def off_station(at: Scene) -> np.ndarray:
    """Return whether a side's asset is too far from its station, ``[G, 2]`` bool."""
    away = at.state[:, :, 0, :3] - at.station[..., :3]
    return np.linalg.norm(away, axis=-1) > rules.STATION_M

"""Baseline players of OrbitalDominance: random, hold, tracker, pursuit and evader.

A player maps observations ``[B, size]`` and masks ``[B, actions]`` to actions ``[B]``. It uses only
the observation.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from headrace_ssa.dominance import motion, rules, view
from headrace_ssa.dominance.motion import is_lit, propagation, sun_direction

Player = Callable[[np.ndarray, np.ndarray], np.ndarray]
LOOK_AHEAD = 24
"""Planning horizon of burns in steps: half a revolution."""

_STEPS = np.arange(1, LOOK_AHEAD + 1)
_KICKS = rules.BURN_MS * np.concatenate([np.zeros((1, 3)), rules.DIRECTIONS])


def random_player(seed: int = 0) -> Player:
    """Return a player that samples uniformly from the allowed actions."""
    rng = np.random.default_rng(seed)
    return lambda _, mask: np.where(mask, rng.random(mask.shape), -1.0).argmax(axis=1)


def hold() -> Player:
    """Return a player that never acts."""
    return lambda obs, _: np.zeros(len(obs), np.int64)


def tracker() -> Player:
    """Return a player that points every sensor at the other side's asset and never moves."""
    return lambda obs, _: _point(view.read(obs))


def pursuit(inclination: float | None = None) -> Player:
    """Return a player that points its sensors, then moves inspectors near the other side's asset.

    It makes the burn that adds most to the expected points of inspections in the next half
    revolution if neither side burns afterwards, and only if the gain exceeds the cost.

    Args:
        inclination: inclination of the game, for predicting the motion.
    """
    paths = _paths(motion.rates(inclination))

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seen = view.read(obs)
        values = _nearness(paths, seen, seen.own[:, 1:], seen.other[:, :1], seen.spread_m[:, :1])
        return _first(_point(seen), _burn(rules.INSPECTION * values, mask, first=1))

    return act


def evader(inclination: float | None = None) -> Player:
    """Return a player that points its sensors, jams near inspectors and moves its asset away.

    It makes the burn that saves most of the expected points lost to inspections in the next half
    revolution, less those for leaving its station, if neither side burns afterwards.

    Args:
        inclination: as for :func:`pursuit`.
    """
    paths = _paths(motion.rates(inclination))

    def act(obs: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seen = view.read(obs)
        cost = rules.INSPECTION * _nearness(
            paths, seen, seen.own[:, :1], seen.other[:, 1:], seen.spread_m[:, 1:]
        )
        away = np.linalg.norm(_ahead(paths, seen.off)[:, None] + paths.moves, axis=-1)
        values = -cost + rules.OFF_STATION * (away > rules.STATION_M).sum(axis=-1)[..., None]
        burn = _burn(values, mask, first=0)
        return _first(_point(seen), _first(_jam(seen, mask), burn))

    return act


PLAYERS: dict[str, Callable[[], Player]] = {
    "random": random_player,
    "hold": hold,
    "tracker": tracker,
    "pursuit": pursuit,
    "evader": evader,
}


class _Paths(NamedTuple):
    """Transition matrices for the next steps, and the effects of burns."""

    place: np.ndarray  # [K, 3, 6] from a state to its later positions
    moves: np.ndarray  # [7, K, 3] m, displacement without a burn and by each burn
    turn: float  # rad/s, rate of the frame


@functools.cache
def _paths(rates: motion.Rates) -> _Paths:
    """Compute the matrices of the next steps once per set of rates."""
    phi = np.stack([propagation(rules.STEP_S * steps, rates) for steps in _STEPS])
    moves = np.einsum("kij,bj->bki", phi[:, :3, 3:], _KICKS)
    return _Paths(phi[:, :3], moves, rates.turn)


def _first(*choices: np.ndarray) -> np.ndarray:
    """Return the first of several actions that isn't hold."""
    result = choices[-1]
    for choice in choices[-2::-1]:
        result = np.where(choice > 0, choice, result)
    return result


def _point(seen: view.Observation) -> np.ndarray:
    """Point the next sensor that doesn't follow the other side's asset at it, inspectors first."""
    n = seen.own.shape[1]
    points_elsewhere = seen.target[:, ::-1, 0] < 0.5
    which = n - 1 - points_elsewhere.argmax(axis=1)
    return np.where(points_elsewhere.any(axis=1), rules.Actions(n).first_point + n * which, 0)


def _jam(seen: view.Observation, mask: np.ndarray) -> np.ndarray:
    """Jam with the satellite nearest to an inspector that threatens the asset, in sunlight."""
    n = seen.own.shape[1]
    first = rules.Actions(n).first_jam
    inspectors = seen.other[:, None, 1:, :3]
    near = np.linalg.norm(inspectors - seen.own[:, :, None, :3], axis=-1)  # [B, own, other]
    threat = (near[:, :1] < 1.5 * rules.INSPECTION_M) & (near < rules.JAM_RANGE_M)
    threat &= (mask[:, first:] > 0)[..., None] & (seen.light[:, 0] > 0.5)[:, None, None]
    near = np.where(threat, near, np.inf).min(axis=2)
    return np.where(np.isfinite(near).any(axis=1), first + near.argmin(axis=1), 0)


def _ahead(paths: _Paths, state: np.ndarray) -> np.ndarray:
    """Return positions ``[..., K, 3]`` in the next steps of states ``[..., 6]``."""
    return np.einsum("kij,...j->...ki", paths.place, state)


def _nearness(
    paths: _Paths, seen: view.Observation, own: np.ndarray, other: np.ndarray, spread_m: np.ndarray
) -> np.ndarray:
    """Return the expected number of sunlit steps that each satellite spends near another one.

    Args:
        own: ``[B, I, 6]`` states. other: ``[B, J, 6]`` tracks. spread_m: ``[B, J]`` of the tracks.

    Returns:
        ``[B, 7, I]``, without a burn and after each burn of that satellite: a smooth count, summed
        over the others, with a penalty for approaches that risk a collision.
    """
    between = _ahead(paths, other)[:, None, :] - _ahead(paths, own)[:, :, None]  # [B, I, J, K, 3]
    away2 = ((between[:, None] - paths.moves[:, None, None]) ** 2).sum(axis=-1)
    away2 = away2 + spread_m[:, None, None, :, None] ** 2
    near = 1.0 / (1.0 + (away2 / (0.75 * rules.INSPECTION_M) ** 2) ** 2)
    near -= 10.0 * np.exp(-away2 / (4.0 * rules.COLLISION_M) ** 2)
    return (near * _light(seen, paths.turn)[:, None, None, None]).sum(axis=(3, 4))


def _light(seen: view.Observation, turn: float) -> np.ndarray:
    """Return whether the Sun shines in each of the next steps, ``[B, K]``; ``turn`` in rad/s."""
    elevation = np.arcsin(np.clip(seen.sun[:, 2], -1.0, 1.0))
    angle = np.arctan2(-seen.sun[:, 1], seen.sun[:, 0])
    later = angle[:, None] + turn * rules.STEP_S * _STEPS
    return is_lit(sun_direction(np.broadcast_to(elevation[:, None], later.shape), later))


def _burn(values: np.ndarray, mask: np.ndarray, first: int) -> np.ndarray:
    """Return the burn with the greatest gain in ``values`` ``[B, 7, I]``, or hold below its cost.

    Args:
        first: index of the first satellite that may burn.
    """
    gains = np.swapaxes(values[:, 1:] - values[:, :1], 1, 2).reshape(len(values), -1)
    start = 1 + first * len(rules.DIRECTIONS)
    gains = np.where(mask[:, start : start + gains.shape[1]] > 0, gains, -np.inf)
    return np.where(gains.max(axis=1) > -rules.BURN, start + gains.argmax(axis=1), 0)

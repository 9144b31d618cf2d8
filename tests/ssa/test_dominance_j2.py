"""Relative motion with J2 against an integration of every satellite's own orbit."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from headrace_ssa import orbits
from headrace_ssa.dominance import motion, scene
from tests.ssa.dominance_oracle import EARTH, J2, pull

RADIUS = motion.RADIUS_M
REVOLUTION_S = 2 * math.pi / motion.MEAN_MOTION
PLACES = 8  # on the orbit, where the game begins
NEAR = 0.001  # share of the game's distances at which linear equations leave out next to nothing
INCLINATIONS = (0.0, 51.6, 97.8)


def moving(place, speed):
    """Return axes ``[..., 3, 3]`` of an orbit's frame, and its spin in these axes, under J2."""
    axes, radius = orbits.frame(place, speed), np.linalg.norm(place, axis=-1)
    momentum = np.linalg.norm(np.cross(place, speed), axis=-1)
    across = [pull(p, J2) @ each[2] for p, each in zip(place, axes, strict=True)]
    return axes, np.stack(
        [radius / momentum * across, np.zeros(len(axes)), momentum / radius**2], axis=-1
    )


def reference(degrees):
    """Return positions and velocities ``[PLACES, 3]`` on a nearly circular orbit under J2."""
    inclination = math.radians(max(degrees, 1e-3))
    # A mean radius as the game's takes another mean axis: J2 pulls inwards, and lets it turn.
    bent = 0.75 * J2 * (EARTH / RADIUS) ** 2 * (3 * math.cos(inclination) ** 2 - 1)
    latitudes = 0.1 + 2 * math.pi * np.arange(PLACES) / PLACES
    zero = np.zeros(PLACES)
    tilts, nodes = zero + inclination, zero + 0.3
    return orbits.state(
        orbits.Elements(RADIUS * (1 + bent) + zero, zero, zero, tilts, nodes, latitudes)
    )


def integrated(states, degrees, seconds):
    """Return later positions ``[PLACES, K, 3]`` of satellites ``[K, 6]`` in the moving frame."""
    place, speed = reference(degrees)
    axes, spin = moving(place, speed)
    around = np.cross(spin[:, None], states[:, :3])
    start = np.zeros((PLACES, 1 + len(states), 6))
    start[:, 0] = np.concatenate([place, speed], axis=-1)
    start[:, 1:, :3] = place[:, None] + states[:, :3] @ axes
    start[:, 1:, 3:] = speed[:, None] + (states[:, 3:] + around) @ axes

    def force(_, numbers):
        each = numbers.reshape(-1, 6)
        r2 = (each[:, :3] ** 2).sum(-1, keepdims=True)
        up2 = each[:, 2:3] ** 2 / r2
        bulge = 1.5 * J2 * EARTH**2 / r2 * ([1, 1, 3] - 5 * up2)
        pulled = -orbits.MU * each[:, :3] / r2**1.5 * (1 + bulge)
        return np.concatenate([each[:, 3:], pulled], axis=-1).ravel()

    end = solve_ivp(force, (0, seconds), start.ravel(), "DOP853", rtol=1e-13, atol=1e-8).y[:, -1]
    end = end.reshape(start.shape)
    axes, _ = moving(end[:, 0, :3], end[:, 0, 3:])
    return (end[:, 1:, :3] - end[:, :1, :3]) @ axes.transpose(0, 2, 1)


@functools.cache
def errors(degrees, seconds, share, burns):
    """Return vectors between the sides' satellites, ``[PLACES, pairs, 3]`` m, without and with J2,
    for the game's distances.
    """
    at = motion.rates(degrees)
    states = scene._orbits(np.random.default_rng(0).random((12, 2, 2, 6)), at)
    if burns:
        states[..., 3:] += np.random.default_rng(1).normal(0, 0.5, states[..., 3:].shape)
    states *= share

    def ways(each):
        return (each[:, :, 0, :, None] - each[:, :, 1, None]).reshape(len(each), -1, each.shape[-1])

    true = integrated(states.reshape(-1, 6), degrees, seconds)
    true = ways(true.reshape(PLACES, *states.shape[:-1], 3))
    return [
        (ways(states[None]) @ motion.propagation(seconds, each)[:3].T - true) / share
        for each in (motion.NO_J2, at)
    ]


def sizes(off):
    return np.linalg.norm(off, axis=-1)


@pytest.mark.parametrize("burns", [False, True])
@pytest.mark.parametrize("degrees", INCLINATIONS)
def test_with_j2_it_is_what_an_integration_gives_on_average_over_the_orbit(degrees, burns):
    """The equations average J2 over the orbit, independent of the satellites' position."""
    for what, seconds in (("step", 120.0), ("revolution", REVOLUTION_S)):
        for share in (1.0, NEAR):
            for name, off in zip(("without", "with"), errors(degrees, seconds, share, burns),
                                 strict=True):  # fmt: skip
                each, mean = sizes(off), sizes(off.mean(0))
                print(f"{degrees}°, burns={burns}, a {what}, distances x {share:g}, {name} J2: "
                      f"{np.median(each):.3f} m (median), {each.max():.3f} m at most; on average "
                      f"over the orbit {np.median(mean):.3f} m, {mean.max():.3f} m")  # fmt: skip
    for seconds, times in ((120.0, 2), (REVOLUTION_S, 10)):
        without, with_j2 = (sizes(off.mean(0)) for off in errors(degrees, seconds, NEAR, burns))
        assert np.median(with_j2) < np.median(without) / times
        assert with_j2.max() < without.max() / times


def test_over_the_equator_no_average_is_needed():
    without, with_j2 = (sizes(off) for off in errors(0.0, REVOLUTION_S, NEAR, True))
    assert np.median(with_j2) < np.median(without) / 10
    assert with_j2.max() < without.max() / 10


@pytest.mark.parametrize("degrees", INCLINATIONS)
def test_at_a_games_distances_it_is_no_further_off_than_without(degrees):
    """docs/orbital.md has these medians."""
    without, with_j2 = (sizes(off) for off in errors(degrees, REVOLUTION_S, 1.0, False))
    assert np.median(with_j2) < 1.1 * np.median(without)
    assert np.median(with_j2) < 90
    assert with_j2.max() < 600


def test_the_swing_across_the_track_is_the_average_of_planes_apart_by_tilt_and_by_node():
    """Without it the frame's rate, or that of the argument of latitude, would be as good."""
    degrees = 97.8
    at = motion.rates(degrees)
    _, off = errors(degrees, REVOLUTION_S, NEAR, False)
    states = scene._orbits(np.random.default_rng(0).random((12, 2, 2, 6)), at)
    ways = (states[:, 0, :, None] - states[:, 1, None]).reshape(-1, 6)
    latitude = 1.5 * J2 * (EARTH / RADIUS) ** 2 * math.cos(math.radians(degrees)) ** 2
    latitude = at.turn + motion.MEAN_MOTION * latitude

    def rms(rate):
        other = motion.propagation(REVOLUTION_S, at._replace(across=rate))
        change = ways @ (other - motion.propagation(REVOLUTION_S, at))[2]
        return np.sqrt(np.mean((off[..., 2] + change) ** 2))

    assert rms(at.across) < 0.75 * min(rms(at.turn), rms(latitude))

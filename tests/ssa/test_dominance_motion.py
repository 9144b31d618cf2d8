"""Relative motion, Sun and shadow match other ways to compute them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.integrate import solve_ivp

from headrace_ssa.dominance import OrbitalDominanceVectorEnv, motion, play, players, scene
from headrace_ssa.orbits import EARTH_RADIUS, MU
from tests.ssa.dominance_oracle import J2, flow

N, RADIUS = motion.MEAN_MOTION, motion.RADIUS_M
REVOLUTION_S = 2 * math.pi / N


def two_bodies(state, seconds):
    """Return a state after integrating its orbit around the Earth, seen from the reference."""
    x, y, z, vx, vy, vz = state
    # In the inertial frame at time 0; the moving frame turns with rate N about z.
    start = [RADIUS + x, y, z, vx - N * y, vy + N * (RADIUS + x), vz]

    def force(_, s):
        return [*s[3:], *(-MU * s[:3] / np.linalg.norm(s[:3]) ** 3)]

    end = solve_ivp(force, (0, seconds), start, "DOP853", rtol=1e-12, atol=1e-9).y[:, -1]
    c, s = math.cos(N * seconds), math.sin(N * seconds)
    turn = np.array([[c, s, 0], [-s, c, 0], [0, 0, 1]])
    place = turn @ end[:3]
    speed = turn @ end[3:] - np.cross([0, 0, N], place)
    return np.concatenate([place - [RADIUS, 0, 0], speed])


@pytest.mark.parametrize(("seconds", "metres"), [(120.0, 1.0), (REVOLUTION_S, 250.0)])
def test_it_is_two_body_motion_nearly(seconds, metres):
    uniform = np.random.default_rng(0).random((20, 2, 2, 6))
    states = scene._orbits(uniform).reshape(-1, 6)
    states[:, 3:] += np.random.default_rng(1).normal(0, 0.5, (len(states), 3))  # a burn or so
    predicted = states @ motion.propagation(seconds).T
    true = np.array([two_bodies(state, seconds) for state in states])
    off = np.linalg.norm((predicted - true)[:, :3], axis=1)
    moved = np.linalg.norm((true - states)[:, :3], axis=1)
    print(f"{len(states)} satellites, {seconds:.0f} s: off by {np.median(off):.2f} m (median), "
          f"{off.max():.2f} m at most; moved by up to {moved.max():.0f} m")  # fmt: skip
    assert off.max() < metres


def test_what_is_left_out_shrinks_with_the_square_of_the_distance():
    state = np.array([1000.0, 4000.0, 500.0, 0.1, -2.0, 0.3])
    off = []
    for share in (1.0, 0.5, 0.25):
        predicted = motion.propagation(REVOLUTION_S / 3) @ (share * state)
        off.append(np.linalg.norm((predicted - two_bodies(share * state, REVOLUTION_S / 3))[:3]))
    assert off[0] / off[1] == pytest.approx(4.0, rel=0.05)
    assert off[1] / off[2] == pytest.approx(4.0, rel=0.05)


@pytest.mark.parametrize("seconds", [0.0, 1.0, 120.0, 4_000.0, -300.0])
@pytest.mark.parametrize("inclination", [None, 0.0, 30, 54.7, 97.8, 180.0])
def test_it_solves_the_linear_equations(seconds, inclination):
    wanted = flow(seconds, inclination or 0.0, 0.0 if inclination is None else J2)
    found = motion.propagation(seconds, motion.rates(inclination))
    assert np.allclose(found, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("seconds", [60.0, 120.0, 2_880.0])
def test_without_j2_it_is_clohessy_and_wiltshires_solution_to_the_last_bit(seconds):
    n, angle = N, N * seconds
    c, s = np.cos(angle), np.sin(angle)
    wanted = np.array(
        [
            [4 - 3 * c, 0, 0, s / n, 2 / n * (1 - c), 0],
            [6 * (s - angle), 1, 0, -2 / n * (1 - c), (4 * s - 3 * angle) / n, 0],
            [0, 0, c, 0, 0, s / n],
            [3 * n * s, 0, 0, c, 2 * s, 0],
            [-6 * n * (1 - c), 0, 0, -2 * s, 4 * c - 3, 0],
            [0, 0, -n * s, 0, 0, c],
        ]
    )
    assert np.array_equal(motion.propagation(seconds), wanted)


def test_steps_add_up_and_keep_what_the_equations_keep():
    for at in (motion.rates(), motion.rates(97.8)):
        one, two = motion.propagation(120.0, at), motion.propagation(240.0, at)
        assert np.allclose(one @ one, two, rtol=1e-12, atol=1e-10)
    one = motion.propagation(120.0)

    def energy(states):
        x, _, z, *v = states.T
        return 0.5 * sum(u * u for u in v) - 1.5 * N**2 * x**2 + 0.5 * N**2 * z**2

    states = np.random.default_rng(0).normal(0, [900, 900, 900, 1, 1, 1], (50, 6))
    later = states @ np.linalg.matrix_power(one, 96).T
    assert np.allclose(energy(later), energy(states), rtol=1e-8)


@pytest.mark.parametrize("inclination", [None, 0.0, 51.6, 97.8])
def test_games_begin_on_orbits_that_do_not_drift(inclination):
    at = motion.rates(inclination)
    states = scene._orbits(np.random.default_rng(0).random((50, 2, 3, 6)), at).reshape(-1, 6)
    later = states @ motion.propagation(2 * math.pi / at.ellipse, at).T
    around = [0, 1, 3, 4]
    assert np.allclose(later[:, around], states[:, around], rtol=0, atol=1e-6)
    later = states @ motion.propagation(2 * math.pi / at.across, at).T
    assert np.allclose(later[:, [2, 5]], states[:, [2, 5]], rtol=0, atol=1e-6)
    assert np.abs(states[:, 1]).max() <= scene.CENTRE_M + scene.APART_M + scene.ROUND_M[1]


def test_the_sun_stays_in_its_place_while_the_frame_turns():
    angle = np.linspace(0, 2 * np.pi, 50)
    sun = motion.sun_direction(np.full(50, 0.4), angle)
    assert np.allclose(np.linalg.norm(sun, axis=1), 1.0)
    radial = np.stack([np.cos(angle), np.sin(angle), 0 * angle], -1)
    along = np.stack([-np.sin(angle), np.cos(angle), 0 * angle], -1)
    inertial = sun[:, :1] * radial + sun[:, 1:2] * along + sun[:, 2:] * [0, 0, 1]
    assert np.allclose(inertial, [np.cos(0.4), 0, np.sin(0.4)])


@pytest.mark.parametrize("elevation", [0.0, 0.6, -0.7, 1.3])
def test_the_shadow_is_as_long_as_geometry_says(elevation):
    angle = np.linspace(0, 2 * np.pi, 100_001)[:-1]
    dark = ~motion.is_lit(motion.sun_direction(np.full(angle.shape, elevation), angle))
    # cos(elevation) cos(half) = the cosine at which the cylinder's edge is crossed
    edge = math.sqrt(RADIUS**2 - EARTH_RADIUS**2) / RADIUS / math.cos(elevation)
    share = math.acos(edge) / math.pi if edge < 1 else 0.0
    assert dark.mean() == pytest.approx(share, abs=1e-4)
    if share:
        assert np.cos(angle[dark]).max() < 0  # on the night side


@pytest.mark.parametrize("name", ["random", "pursuit"])
def test_the_straight_way_of_a_step_is_metres_off_that_of_two_half_steps(name, monkeypatch):
    """Collisions use the former, a rule of the game whose error the page states."""
    moved, steps = play.move, []
    half, whole = motion.propagation(60.0), motion.propagation(120.0)

    def move(at):
        between = (at.state[:, 0, :, None] - at.state[:, 1, None]).reshape(-1, 6)
        steps.append([(between @ phi.T)[:, :3] for phi in (np.eye(6), half, whole)])
        return moved(at)

    monkeypatch.setattr(play, "move", move)
    envs, act = OrbitalDominanceVectorEnv(200), players.PLAYERS[name]()
    obs, infos = envs.reset(seed=0)
    for _ in range(envs.horizon):
        obs, *_, infos = envs.step(act(obs, infos["action_mask"]))
    start, middle, end = np.concatenate(steps, axis=1)
    off = np.linalg.norm(middle - (start + end) / 2, axis=-1)
    one = play.closest(start, end)
    two = np.minimum(play.closest(start, middle), play.closest(middle, end))
    for what, which in (("all", two >= 0), ("within 1 km", two < 1_000.0)):
        print(f"{name}, {what}: {which.sum()} steps of two satellites, off by "
              "{:.1f} m (median), {:.1f} m (90%), {:.1f} m at most"
              .format(*np.percentile(off[which], [50, 90, 100])))  # fmt: skip
    assert off.max() < 60.0
    near = two < 1_000.0
    assert near.sum() > 500
    assert np.percentile(off[near], 90) < 10.0
    assert (np.abs(one - two) <= off + 1e-6).all()  # so no miss distance is off by more

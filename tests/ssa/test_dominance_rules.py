"""Rules of OrbitalDominance in manually edited games, and invariants of every game."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa.dominance import OrbitalDominanceVectorEnv, play, rules
from headrace_ssa.dominance.motion import MEAN_MOTION, is_lit, propagation

N = 2
ACTIONS = rules.Actions(N)
HOLD = 0
BLUE, RED, ASSET, INSPECTOR = 0, 1, 0, 1


def burn(k, direction):
    return 1 + 6 * k + direction


def point(k, j):
    return ACTIONS.first_point + N * k + j


def jam(k):
    return ACTIONS.first_jam + k


def staged(places=None):
    """Return a game without measurement errors in full light, all at rest on the track.

    Args:
        places: km ahead of the middle: blue's asset and inspector, red's asset and inspector.
    """
    envs = OrbitalDominanceVectorEnv(2)
    envs.reset(seed=0)
    at = envs.scene
    at.noise[:] = at.survey[:] = 0.0
    at.sun[:] = np.pi / 2 - 0.1, 0.0  # nearly across the track: never dark, never in the way
    at.state[:] = 0.0
    at.state[0, :, :, 1] = 1000.0 * np.reshape(places or [0, 1, 12, 13], (2, 2))
    at.station = at.state[:, :, 0].copy()
    at.mean = at.state[:, ::-1].copy()
    at.mean[..., 2] = 3_000.0  # no side knows anything
    return envs


def step(envs, blue, red=HOLD):
    _, reward, terminated, _, infos = envs.step(np.array([blue, red]))
    assert reward.sum() == 0.0
    return infos, reward, terminated


# -- points ----------------------------------------------------------------------------------


def test_nothing_is_won_where_nobody_knows_or_does_anything():
    infos, reward, _ = step(staged(), HOLD)
    assert infos["points"].tolist() == [0, 0]
    assert reward.tolist() == [0, 0]


@pytest.mark.parametrize(("off", "has"), [(499.0, True), (501.0, False)])
def test_custody_is_a_track_near_the_truth(off, has):
    envs = staged()
    envs.scene.mean[0, BLUE, ASSET] = envs.scene.state[0, RED, ASSET] + [0, off, 0, 0, 0, 0]
    infos, reward, _ = step(envs, HOLD)
    assert infos["custody"].tolist() == [has, False]
    assert reward.tolist() == [rules.CUSTODY * has, -rules.CUSTODY * has]


@pytest.mark.parametrize(("away", "inspects"), [(1.99, True), (2.01, False)])
def test_an_asset_that_is_seen_from_near_is_inspected_by_each_sensor(away, inspects):
    envs = staged([0, 12 - away, 12, 24])
    envs.scene.mean[0, BLUE, ASSET] = envs.scene.state[0, RED, ASSET]
    infos, reward, _ = step(envs, point(INSPECTOR, ASSET))
    assert infos["inspections"].tolist() == [inspects, 0]
    assert reward[BLUE] == rules.CUSTODY + rules.INSPECTION * inspects
    infos, reward, _ = step(envs, point(INSPECTOR, 1))
    assert infos["inspections"].tolist() == [0, 0]  # it follows the inspector now


def test_burns_cost_and_change_the_speed_of_one_satellite():
    for direction, way in enumerate(rules.DIRECTIONS):
        envs = staged()
        before = envs.scene.state.copy()
        infos, reward, _ = step(envs, burn(INSPECTOR, direction))
        before[0, BLUE, INSPECTOR, 3:] += 0.5 * way
        assert np.allclose(envs.scene.state, before @ propagation(rules.STEP_S).T)
        assert infos["burnt"].tolist() == [True, False]
        assert reward.tolist() == [rules.BURN, -rules.BURN]
        assert envs.scene.burns[0].tolist() == [[10, 19], [10, 20]]


def test_an_asset_off_its_station_costs_and_its_inspector_may_go_anywhere():
    envs = staged()
    envs.scene.station[0, BLUE, 1] += rules.STATION_M - 1.0
    assert step(envs, HOLD)[1][BLUE] == 0.0
    envs.scene.station[0, BLUE, 1] += 2.0
    assert step(envs, HOLD)[1][BLUE] == rules.OFF_STATION


@pytest.mark.parametrize(("past", "hits"), [(28.0, True), (31.0, False)])
def test_both_lose_by_a_collision_and_the_game_ends(past, hits):
    envs = staged([0, 5, 9, 5.02])
    at = envs.scene
    at.state[0, BLUE, INSPECTOR, 2] = past
    at.state[0, BLUE, INSPECTOR, 4] = 0.5  # it passes within the step, not at its end
    infos, reward, terminated = step(envs, HOLD)
    assert terminated.tolist() == [hits, hits]
    assert infos["collided"].tolist() == [hits, hits]
    assert infos["points"].tolist() == [rules.COLLISION * hits] * 2
    assert reward.tolist() == [0.0, 0.0]


# -- sensors ---------------------------------------------------------------------------------


def sees(envs, action=None):
    step(envs, point(INSPECTOR, ASSET) if action is None else action)
    return bool(envs.scene.sees[0, BLUE, INSPECTOR])


def looking(away_km=8.0):
    envs = staged([-20, 0, away_km, 40])
    envs.scene.mean[0, BLUE, ASSET] = envs.scene.state[0, RED, ASSET]
    return envs


def test_a_sensor_sees_what_it_points_at_and_goes_on_following_it():
    envs = looking()
    assert not sees(envs, HOLD)
    assert sees(envs)
    assert sees(envs, HOLD)
    assert envs.scene.cov[0, BLUE, ASSET, 0, 0] < 60.0**2
    assert envs.scene.cov[0, BLUE, INSPECTOR, 0, 0] > rules.FIRST_M**2


@pytest.mark.parametrize(("away_km", "can"), [(19.99, True), (20.01, False)])
def test_sensors_have_a_range(away_km, can):
    assert sees(looking(away_km)) == can


@pytest.mark.parametrize(("degrees", "can"), [(4.9, True), (5.1, False)])
def test_they_have_a_field_of_view_around_where_the_track_says(degrees, can):
    envs = looking()
    up = 8_000.0 * np.tan(np.radians(degrees)) / np.cos(MEAN_MOTION * 120.0)
    envs.scene.mean[0, BLUE, ASSET, 2] = up
    assert sees(envs) == can


@pytest.mark.parametrize(("degrees", "can"), [(39.5, False), (40.5, True)])
def test_they_do_not_look_near_the_sun(degrees, can):
    envs = looking()
    # The Sun in the plane of orbit and track, ahead; after the step it has turned.
    envs.scene.sun[0] = np.radians(degrees), -np.pi / 2 - MEAN_MOTION * 120.0
    assert sees(envs) == can


def test_nothing_is_seen_in_the_shadow():
    envs = looking()
    envs.scene.sun[0] = 0.0, np.pi
    assert not is_lit(play.sun_now(envs.scene))[0]
    assert not sees(envs)


@pytest.mark.parametrize(("away_km", "works"), [(4.9, True), (5.1, False)])
def test_a_jammer_keeps_measurements_near_it_from_getting_home(away_km, works):
    envs = looking()
    envs.scene.state[0, RED, INSPECTOR, 1] = 1000.0 * away_km
    step(envs, point(INSPECTOR, ASSET), jam(INSPECTOR))
    assert envs.scene.sees[0, BLUE, INSPECTOR] == (not works)
    assert envs.scene.jams[0].tolist() == [[10, 10], [10, 9]]
    step(envs, HOLD)
    assert envs.scene.sees[0, BLUE, INSPECTOR]  # it jammed for a step


def test_surveys_come_every_16_steps_to_both_sides_and_of_all_satellites():
    envs = staged()
    for k in range(1, 33):
        before = np.diagonal(envs.scene.cov, axis1=-2, axis2=-1)[..., :3].sum(-1)
        step(envs, HOLD)
        after = np.diagonal(envs.scene.cov, axis1=-2, axis2=-1)[..., :3].sum(-1)
        assert ((after < before) == (k % 16 == 0)).all()
        at = envs.scene
        error = np.linalg.norm((at.mean - at.state[:, ::-1])[..., :3], axis=-1)
    assert (error < 1_500).all()


# -- in every game ---------------------------------------------------------------------------


def random_games(n, games=30, horizon=60):
    """Yield games before and after random actions, many of which are forbidden."""
    envs = OrbitalDominanceVectorEnv(2 * games, n, horizon)
    _, infos = envs.reset(seed=4)
    rng = np.random.default_rng(4)
    for _ in range(horizon):
        actions = rng.integers(envs.single_action_space.n, size=2 * games)
        before = envs.scene.burns.copy(), envs.scene.jams.copy(), envs.scene.target.copy()
        mask = infos["action_mask"]
        *told, infos = envs.step(actions)
        yield envs, actions, mask, before, told, infos


@pytest.mark.parametrize("n", [2, 3])
def test_rewards_sum_to_zero_and_budgets_never_fall_below_it(n):
    for envs, _, _, _, (obs, reward, *_), _ in random_games(n):
        assert (reward[::2] + reward[1::2] == 0.0).all()
        assert (envs.scene.burns >= 0).all()
        assert (envs.scene.jams >= 0).all()
        assert envs.single_observation_space.contains(obs[0])
        assert np.isfinite(obs).all()
        assert np.abs(obs).max() <= 1.0
    assert (envs.scene.burns == 0).any()


def test_what_the_mask_forbids_does_nothing_and_all_else_does_something():
    forbidden = 0
    for envs, actions, mask, before, _, infos in random_games(2):
        allowed = mask[np.arange(60), actions] > 0
        after = envs.scene.burns, envs.scene.jams, envs.scene.target
        games = zip(before, after, strict=True)
        changed = np.any([(a != b).reshape(60, -1).any(axis=1) for a, b in games], axis=0)
        assert (changed[~infos["collided"]] == (allowed & (actions > 0))[~infos["collided"]]).all()
        assert (infos["burnt"] <= allowed).all()
        assert (infos["jammed"] <= allowed).all()
        forbidden += (~allowed).sum()
    assert forbidden > 100


@pytest.mark.parametrize("n", [2, 3])
def test_sides_that_change_seats_change_everything(n):
    """Red's game from blue's seat has the same observations, masks and rewards, reordered."""
    envs, other = (OrbitalDominanceVectorEnv(40, n, 50) for _ in range(2))
    envs.reset(seed=7), other.reset(seed=7)
    at = other.scene
    for name in ("state", "station", "burns", "jams", "mean", "cov"):
        setattr(at, name, getattr(at, name)[:, ::-1].copy())
    at.noise, at.survey = at.noise[:, :, ::-1], at.survey[:, :, ::-1]
    rng = np.random.default_rng(0)
    for _ in range(49):
        actions = rng.integers(envs.single_action_space.n, size=(20, 2))
        obs, reward, ended, _, infos = envs.step(actions.ravel())
        seen, paid, over, _, told = other.step(actions[:, ::-1].ravel())
        assert np.array_equal(obs.reshape(20, 2, -1)[:, ::-1], seen.reshape(20, 2, -1))
        assert np.array_equal(reward.reshape(20, 2)[:, ::-1], paid.reshape(20, 2))
        assert np.array_equal(ended, over)
        masks = infos["action_mask"].reshape(20, 2, -1), told["action_mask"].reshape(20, 2, -1)
        assert np.array_equal(masks[0][:, ::-1], masks[1])
        if ended.any():
            break
    assert np.abs(paid).max() > 0


def test_neither_seat_is_better():
    envs = OrbitalDominanceVectorEnv(1000)
    envs.reset(seed=0)
    total = np.zeros(1000)
    for k in range(30):
        reward = envs.step(np.full(1000, point(k % 2, ASSET)))[1]
        total += reward
    blue = total[::2]
    assert abs(blue.mean()) < 4 * blue.std() / len(blue) ** 0.5

"""The scripted players of OrbitalDominance, and matches between them."""

from __future__ import annotations

import numpy as np
import pytest

from headrace.errors import ConfigError
from headrace_ssa.dominance import OrbitalDominanceVectorEnv, match, motion, players, rules, view
from headrace_ssa.dominance.motion import propagation, rates

ACTIONS = rules.Actions(2)


def scenes(steps=10, games=30, n=2, inclination=None):
    """Return games after some random steps, with the observations of their columns."""
    envs = OrbitalDominanceVectorEnv(2 * games, n, inclination=inclination)
    obs, infos = envs.reset(seed=0)
    act = players.random_player()
    for _ in range(steps):
        obs, _, _, _, infos = envs.step(act(obs, infos["action_mask"]))
    return envs, obs, infos["action_mask"]


@pytest.mark.parametrize("n", [2, 3])
def test_an_observation_is_read_as_it_was_written(n):
    envs, obs, _ = scenes(n=n)
    at, seen = envs.scene, view.read(obs)
    size = 2 * len(at.time)
    assert np.allclose(seen.own.reshape(at.state.shape), at.state, rtol=1e-5, atol=0.02)
    assert np.allclose(seen.other.reshape(at.mean.shape), at.mean, rtol=1e-5, atol=0.02)
    off = at.state[:, :, 0] - at.station
    assert np.allclose(seen.off.reshape(off.shape), off, rtol=1e-5, atol=0.02)
    spread = np.sqrt(np.diagonal(at.cov, axis1=-2, axis2=-1)[..., :3].mean(-1))
    assert np.allclose(seen.spread_m.reshape(spread.shape), spread, rtol=1e-4)
    assert (seen.target.argmax(-1).reshape(at.target.shape) == np.maximum(at.target, 0)).all()
    assert seen.sees.reshape(at.sees.shape).tolist() == at.sees.tolist()
    assert seen.pairs.shape == (size, n, n, len(view.AHEAD), 3)


@pytest.mark.parametrize("name", players.PLAYERS)
@pytest.mark.parametrize("n", [2, 3])
def test_players_take_allowed_actions_and_each_row_is_its_own(name, n):
    _, obs, mask = scenes(n=n)
    actions = players.PLAYERS[name]()(obs, mask)
    assert actions.shape == (60,)
    assert (mask[np.arange(60), actions] == 1).all()
    if name != "random":
        act = players.PLAYERS[name]()
        assert [act(obs[i : i + 1], mask[i : i + 1])[0] for i in range(60)] == actions.tolist()


def test_the_tracker_points_inspectors_first_and_then_holds():
    envs = OrbitalDominanceVectorEnv(2, 3)
    obs, infos = envs.reset(seed=0)
    act, taken = players.tracker(), []
    for _ in range(5):
        actions = act(obs, infos["action_mask"])
        taken.append(int(actions[0]))
        obs, _, _, _, infos = envs.step(actions)
    start = rules.Actions(3).first_point
    assert taken == [start + 6, start + 3, start, 0, 0]


@pytest.fixture
def flat(monkeypatch):
    """An Earth so flat that ignoring J2 is detected."""
    monkeypatch.setattr(motion, "J2", 0.05)


def slow_gain(at, own, other, spread, kick, sun_steps):
    """Return the points of inspection expected from a burn, step by step."""
    total = 0.0
    for k in range(1, 25):
        if not sun_steps[k - 1]:
            continue
        phi = propagation(120.0 * k, at)
        away = (phi @ other)[:3] - (phi @ (own + np.concatenate([np.zeros(3), kick])))[:3]
        away2 = away @ away + spread**2
        total += 1.0 / (1.0 + (away2 / 1_500.0**2) ** 2) - 10.0 * np.exp(-away2 / 120.0**2)
    return 3.0 * total


@pytest.mark.parametrize("inclination", [None, 97.8])
def test_pursuit_takes_the_one_burn_that_brings_most(inclination, flat):
    envs, obs, mask = scenes(steps=0, games=15, inclination=inclination)
    at, act, turning = envs.scene, players.pursuit(inclination), rates(inclination)
    for _ in range(2):  # its sensors point first
        obs, _, _, _, infos = envs.step(act(obs, mask))
        mask = infos["action_mask"]
    actions, burnt = act(obs, mask), 0
    for column, action in enumerate(actions):
        game, side = divmod(column, 2)
        track, cov = at.mean[game, side, 0], at.cov[game, side, 0]
        spread = np.sqrt(np.trace(cov[:3, :3]) / 3)
        light = players._light(view.read(obs[column : column + 1]), turning.turn)[0]
        own = at.state[game, side, 1]
        kicks = [np.zeros(3), *(0.5 * rules.DIRECTIONS)]
        values = np.array([slow_gain(turning, own, track, spread, kick, light) for kick in kicks])
        best = values[1:].argmax()
        wanted = 7 + best if values[1 + best] - values[0] > 0.2 else 0
        assert action == wanted
        burnt += wanted > 0
    assert 5 < burnt < 30


@pytest.mark.parametrize("inclination", [None, 0.0])
def test_the_light_ahead_is_that_of_the_game(inclination, flat):
    envs, obs, _ = scenes(steps=3, inclination=inclination)
    ahead = players._light(view.read(obs), rates(inclination).turn)
    for k in range(24):
        obs, *_ = envs.step(np.zeros(60, int))
        assert (view.read(obs).light[:, 0] == ahead[:, k]).all()


def test_the_evader_jams_what_is_near_and_moves_its_asset():
    envs, obs, mask = scenes(steps=0, games=100)
    act, taken = players.evader(), set()
    for _ in range(60):
        actions = act(obs, mask)
        taken |= set(actions.tolist())
        at, sides = envs.scene, np.arange(200) % 2
        which = actions - ACTIONS.first_jam
        for column in np.flatnonzero(which >= 0):
            game, side = column // 2, sides[column]
            foe = at.mean[game, side, 1, :3]
            assert np.linalg.norm(foe - at.state[game, side, which[column], :3]) < 5_000.0
        obs, _, _, _, infos = envs.step(actions)
        mask = infos["action_mask"]
    assert taken & set(range(1, 7))  # burns of the asset
    assert not taken & set(range(7, 13))  # and none of the inspector
    assert taken >= {ACTIONS.first_jam, ACTIONS.first_jam + 1}


# -- matches ---------------------------------------------------------------------------------


def test_a_player_is_as_good_as_itself_and_pairs_take_all_luck_of_the_seats_away():
    result = match.play(players.pursuit(), players.pursuit(), 8)
    assert result.returns.tolist() == [0.0] * 8
    assert result.first == result.second
    assert (result.mean, result.se, result.in_se) == (0.0, 0.0, 0.0)


def test_a_match_needs_two_pairs_for_its_error():
    with pytest.raises(ConfigError, match=r"pairs=1 must be at least 2.*\(nearest: 2\)"):
        match.play(players.hold(), players.hold(), 1)


def test_a_match_is_the_same_from_the_other_side_and_every_time():
    one = match.play(players.pursuit(), players.tracker(), 10, seed=1, horizon=40)
    other = match.play(players.tracker(), players.pursuit(), 10, seed=1, horizon=40)
    assert np.allclose(one.returns, -other.returns)
    assert one.first == pytest.approx(other.second)
    assert one.second == pytest.approx(other.first)
    assert one.mean == pytest.approx(one.first["points"] - one.second["points"])
    assert one.se == pytest.approx(one.returns.std(ddof=1) / 10**0.5)
    again = match.play(players.pursuit(), players.tracker(), 10, seed=1, horizon=40)
    assert np.array_equal(one.returns, again.returns)


def test_only_the_first_game_of_each_seed_counts():
    short = match.play(players.tracker(), players.hold(), 5, seed=1, horizon=4)
    games = OrbitalDominanceVectorEnv(10, horizon=4)
    obs, infos = games.reset(seed=1)
    total = np.zeros(10)
    for _ in range(4):
        actions = players.tracker()(obs, infos["action_mask"])
        actions[1::2] = 0
        obs, reward, *_, infos = games.step(actions)
        total += reward
    assert short.first["points"] == pytest.approx(short.mean + short.second["points"])
    assert 0 < short.first["custody"] <= 4
    assert total[::2].mean() != 0


def test_the_better_of_two_players_wins():
    ranks = ["random", "hold", "tracker", "pursuit"]
    for better, worse in zip(ranks[:0:-1], ranks[-2::-1], strict=True):
        result = match.play(players.PLAYERS[better](), players.PLAYERS[worse](), 60, seed=1)
        assert result.in_se > 2, (better, worse, result.mean)
    assert match.play(players.evader(), players.tracker(), 60, seed=1).in_se > 2

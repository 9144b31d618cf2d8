"""The vector environment matches its literal version, and mutants of each rule fail."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils import seeding

from headrace_ssa.dominance import OrbitalDominanceVectorEnv as Games
from headrace_ssa.dominance import motion, play, rules, scene, tracks, view
from headrace_ssa.dominance.motion import NO_J2, propagation
from tests.ssa.dominance_oracle import SlowGame


@pytest.fixture
def crowded(monkeypatch):
    """Satellites so near to each other that much happens, and some collide."""
    monkeypatch.setattr(scene, "CENTRE_M", 700.0)
    monkeypatch.setattr(scene, "APART_M", 400.0)
    monkeypatch.setattr(scene, "ROUND_M", (50.0, 400.0))
    monkeypatch.setattr(scene, "ACROSS_M", 60.0)


FLAT = 0.05  # J2 of an Earth so flat that whatever forgets it is seen in a game


@pytest.fixture
def flat(monkeypatch):
    monkeypatch.setattr(motion, "J2", FLAT)


def wishes(rng, mask, n):
    """Return random actions: mostly allowed ones, with fewer burns than uniform."""
    weights = np.where(mask, 1.0, 0.3) * rng.random(mask.shape)
    weights[:, 1 : 1 + 6 * n] *= 0.75
    return weights.argmax(axis=1)


def replay(seed, n, horizon, games, num_steps, inclination=None):
    """Play the game and its literal version; return the counts of all events."""
    envs = Games(2 * games, n, horizon, inclination=inclination)
    rates = motion.rates(inclination)
    rngs = [seeding.np_random(seed + g)[0] for g in range(games)]

    def fresh(g):
        drawn = scene.draw([rngs[g]], n, horizon, rates)
        return SlowGame(drawn, horizon, inclination, motion.J2)

    slow = [fresh(g) for g in range(games)]
    obs, infos = envs.reset(seed=seed)
    ended, rng = [False] * games, np.random.default_rng(seed)
    happened = dict.fromkeys(("sees", "custody", "inspections", "collided", "ended", "off"), 0)
    for _ in range(num_steps):
        for g, one in enumerate(slow):
            for side in (0, 1):
                column = 2 * g + side
                assert np.allclose(obs[column], one.observation(side), rtol=0, atol=2e-6)
                assert infos["action_mask"][column].tolist() == one.mask(side)
        actions = wishes(rng, infos["action_mask"], n)
        obs, reward, terminated, truncated, infos = envs.step(actions)
        assert not truncated.any()
        for g in range(games):
            here = slice(2 * g, 2 * g + 2)
            if ended[g]:
                slow[g], wanted = fresh(g), ([0.0, 0.0], False, [0, 0])
            else:
                wanted = slow[g].step(actions[here])
            (blue, red), ended[g], inspections = wanted
            assert infos["points"][here].tolist() == pytest.approx([blue, red], abs=1e-9)
            assert reward[here].tolist() == pytest.approx([blue - red, red - blue], abs=1e-9)
            assert terminated[here].tolist() == [ended[g]] * 2
            assert infos["inspections"][here].tolist() == inspections
            happened["ended"] += ended[g]
            happened["sees"] += np.sum(slow[g].sees)
        for name in ("custody", "inspections", "collided"):
            happened[name] += infos[name].sum()
        happened["off"] += play.off_station(envs.scene).sum()
    return happened


def test_random_games_are_those_of_a_slow_transcription_of_the_rules(crowded):
    happened = replay(seed=3, n=2, horizon=40, games=6, num_steps=85)
    assert min(happened[x] for x in ("sees", "custody", "inspections", "ended")) >= 8, happened
    assert happened["collided"] >= 2, happened


def test_so_are_games_as_they_are_drawn_by_default_and_with_more_satellites():
    happened = replay(seed=8, n=3, horizon=96, games=2, num_steps=98)
    assert happened["sees"] > 30
    assert happened["ended"] == 2


@pytest.mark.parametrize("inclination", [0.0, 51.6, 97.8])
def test_and_games_with_j2(inclination, flat):
    happened = replay(seed=8, n=2, horizon=30, games=2, num_steps=33, inclination=inclination)
    assert happened["sees"] > 5
    assert happened["ended"] == 2


def test_and_games_far_apart(monkeypatch):
    monkeypatch.setattr(scene, "CENTRE_M", 25_000.0)
    assert replay(seed=3, n=2, horizon=40, games=6, num_steps=40)["sees"] > 10


# -- mutants ---------------------------------------------------------------------------------

MUTANTS = {
    "a field of view twice as wide": (play, "_COS_FIELD", np.cos(np.radians(10.0))),
    "no glare": (play, "_COS_SUN", 2.0),
    "jammers without a target in reach": (rules, "JAM_RANGE_M", 0.0),
    "sensors that see far": (rules, "SENSOR_RANGE_M", 1e9),
    "no survey": (play, "_survey", lambda at: None),
    "it never gets dark": (play, "is_lit", lambda sun: np.ones(sun.shape[:-1], bool)),
    "stronger burns": (rules, "BURN_MS", 0.6),
    "tracks that expect no burns": (rules, "KICK_MS", 0.0),
    "sharper sensors": (rules, "NOISE_M", 1.0),
    "wider custody": (rules, "CUSTODY_M", 600.0),
    "inspection from far": (rules, "INSPECTION_M", 2_500.0),
    "no collisions": (rules, "COLLISION_M", 0.0),
    "satellites that move back": (play, "propagation", lambda s, at: propagation(-s, at)),
    "no news in an update": (tracks, "inverse", lambda m: np.zeros_like(m)),
    "no look ahead": (view, "_later", lambda at: np.tile(np.eye(3, 6), (4, 1))),
}


@pytest.mark.parametrize("name", MUTANTS)
def test_a_broken_rule_is_seen(name, crowded, monkeypatch):
    monkeypatch.setattr(*MUTANTS[name])
    if name == "sensors that see far":  # all are close in a crowd
        monkeypatch.setattr(scene, "CENTRE_M", 25_000.0)
    with pytest.raises(AssertionError):
        replay(seed=3, n=2, horizon=40, games=6, num_steps=85)


def slow_sun(at, steps=0):
    return motion.sun_direction(
        at.sun[:, 0], at.sun[:, 1] + motion.MEAN_MOTION * rules.STEP_S * (at.time + steps)
    )


def around(inclination):
    return rates(inclination)._replace(across=rates(inclination).turn)


later, rates = view._later, motion.rates
MUTANTS_OF_J2 = {
    "no J2 in a step": (play, "propagation", lambda s, at: propagation(s)),
    "no J2 in the look ahead": (view, "_later", lambda at: later(NO_J2)),
    "a Sun that goes by two bodies": (play, "sun_now", slow_sun),
    "J2 of the equator": (motion, "rates", lambda i: rates(None if i is None else 0.0)),
    "as fast across as around": (motion, "rates", around),
}


@pytest.mark.parametrize("name", MUTANTS_OF_J2)
def test_so_is_broken_j2(name, flat, monkeypatch):
    monkeypatch.setattr(*MUTANTS_OF_J2[name])
    with pytest.raises(AssertionError):
        replay(seed=8, n=2, horizon=30, games=2, num_steps=30, inclination=97.8)

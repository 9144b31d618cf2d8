"""Tracks of the other side: a filter with a correct estimate of its error."""

from __future__ import annotations

import numpy as np
import pytest

from headrace_ssa.dominance import OrbitalDominanceVectorEnv as Games
from headrace_ssa.dominance import motion, play, rules, tracks


def some(count, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(0, 1, (count, 6, 6)) * np.repeat([400.0, 0.4], 3)[:, None]
    return rng.normal(0, 1000, (count, 6)), root @ root.transpose(0, 2, 1), rng


def test_a_prediction_is_the_textbooks():
    mean, cov, _ = some(5)
    phi = motion.propagation(300.0)
    noise = np.diag([0, 0, 0, *[0.3**2] * 3])
    new_mean, new_cov = tracks.predicted(mean, cov, phi, 0.3)
    for k in range(5):
        assert np.allclose(new_mean[k], phi @ mean[k])
        assert np.allclose(new_cov[k], phi @ (cov[k] + noise) @ phi.T, rtol=1e-10)


def test_an_update_is_the_textbooks():
    mean, cov, rng = some(5)
    place, sigma = rng.normal(0, 1000, (5, 3)), np.array([1.0, 10, 50, 500, 5000])
    new_mean, new_cov = tracks.observed(mean, cov, place, sigma)
    for k in range(5):
        information = np.linalg.inv(cov[k])
        precision = information.copy()
        precision[:3, :3] += np.eye(3) / sigma[k] ** 2
        wanted = np.linalg.inv(precision)
        assert np.allclose(new_cov[k], wanted, rtol=1e-6, atol=1e-9)
        right = information @ mean[k]
        right[:3] += place[k] / sigma[k] ** 2
        assert np.allclose(new_mean[k], wanted @ right, rtol=1e-6, atol=1e-6)
        assert np.array_equal(new_cov[k], new_cov[k].T)


def test_inverses_are_lapacks():
    _, cov, _ = some(50)
    assert np.allclose(tracks.inverse(cov[:, :3, :3]) @ cov[:, :3, :3], np.eye(3), atol=1e-9)


def test_tracks_grow_without_measurements_and_shrink_with_them():
    envs = Games(2)
    envs.reset(seed=0)
    at = envs.scene
    before = at.cov.copy()
    play.move(at)
    volume = np.linalg.slogdet
    assert (volume(at.cov)[1] > volume(before)[1]).all()
    assert (np.trace(at.cov[..., :3, :3], axis1=-2, axis2=-1)
            > np.trace(before[..., :3, :3], axis1=-2, axis2=-1)).all()  # fmt: skip
    before = at.cov.copy()
    at.time[:] = rules.SURVEY_STEPS
    play._survey(at)
    gone = before - at.cov
    assert (np.linalg.eigvalsh(gone) > -1e-6 * np.abs(before).max((-2, -1))[..., None]).all()
    assert (volume(at.cov)[1] < volume(before)[1]).all()


@pytest.mark.parametrize("looks", [False, True])
def test_errors_are_as_large_as_the_tracks_say_if_burns_are_as_they_expect(looks):
    """The mean of error' P^-1 error is 6, as for a true Gaussian of 6 numbers.

    With observations it is somewhat more: missed targets were farther away than the track says, and
    misses aren't used as information.
    """
    games = 1500
    envs = Games(2 * games)
    envs.reset(seed=1)
    rng = np.random.default_rng(2)
    for step in range(20):
        at = envs.scene
        at.state[..., 3:] += rules.KICK_MS * rng.standard_normal(at.state[..., 3:].shape)
        first = rules.Actions(2).first_point
        action = first + step if looks and step < 4 else 0
        envs.step(np.full(2 * games, action))
    at = envs.scene
    assert (at.time == 20).all()
    error = at.mean - at.state[:, ::-1]
    size = (error * np.linalg.solve(at.cov, error[..., None])[..., 0]).sum(-1)
    seen = at.sees.any() if looks else not at.sees.any()
    assert seen
    # Deviation of the mean of chi-square of 6: sqrt(12 / count).
    away = (size.mean() - 6.0) / (12.0 / size.size) ** 0.5
    print(f"looks={looks}: {size.mean():.3f} of 6, {away:.1f} standard errors")
    assert 5.8 < size.mean() < 6.5 if looks else abs(away) < 4.5

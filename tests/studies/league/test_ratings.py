"""Ratings have maximum likelihood, with correct standard errors."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from headrace.studies.league.picture import payoffs
from headrace.studies.league.ratings import PRIOR, SCALE, rate


def test_two_players_differ_by_the_logarithm_of_their_odds() -> None:
    ratings = rate({("a", "b"): (100_000, 75_000.0)})
    difference = ratings["a"].value - ratings["b"].value
    assert difference == pytest.approx(400 * math.log10(3), abs=0.5)
    assert ratings["a"].value + ratings["b"].value == pytest.approx(3000)
    # of a difference of two: that of the log-odds of a binomial share, halved for each
    se = SCALE / math.sqrt(100_000 * 0.75 * 0.25) / 2
    assert ratings["a"].se == pytest.approx(se, rel=0.01)
    assert list(ratings) == ["a", "b"]


def test_spreads_of_three_players_are_those_of_the_numerical_curvature() -> None:
    games = {("a", "b"): (30, 21.0), ("b", "c"): (12, 5.0), ("a", "c"): (50, 41.0)}
    ratings = rate(games)
    best = {name: (one.value - 1500) / SCALE for name, one in ratings.items()}

    def loss(x: np.ndarray) -> float:
        at, total = dict(zip("abc", x, strict=True)), 0.5 * (SCALE / PRIOR) ** 2 * float(x @ x)
        for (one, other), (count, score) in games.items():
            p = 1 / (1 + math.exp(at[other] - at[one]))
            total -= score * math.log(p) + (count - score) * math.log(1 - p)
        return total

    x, h = np.array([best[name] for name in "abc"]), 1e-3 * np.eye(3)
    gradient = [(loss(x + h[i]) - loss(x - h[i])) / 2e-3 for i in range(3)]
    assert np.abs(gradient).max() < 1e-3
    hessian = np.array([
        [(loss(x + h[i] + h[j]) - loss(x + h[i] - h[j]) - loss(x - h[i] + h[j])
          + loss(x - h[i] - h[j])) / 4e-6 for j in range(3)] for i in range(3)
    ])  # fmt: skip
    free = np.eye(3) - 1 / 3
    spread = SCALE * np.sqrt(np.diag(free @ np.linalg.inv(hessian) @ free))
    assert [ratings[name].se for name in "abc"] == pytest.approx(spread, rel=1e-3)


def test_the_order_of_players_and_games_changes_nothing() -> None:
    games = {("a", "b"): (10, 7.0), ("b", "c"): (20, 12.5), ("a", "c"): (5, 5.0)}
    turned = {(b, a): (n, n - s) for (a, b), (n, s) in reversed(games.items())}
    one, other = rate(games), rate(turned)
    for name in "abc":
        assert one[name].value == pytest.approx(other[name].value, abs=1e-3)
        assert one[name].se == pytest.approx(other[name].se, rel=1e-4)


def test_who_never_lost_has_a_rating_and_much_spread() -> None:
    ratings = rate({("a", "b"): (20, 20.0), ("b", "c"): (20, 10.0)})
    assert 1500 < ratings["a"].value < 1500 + 3 * PRIOR
    assert ratings["a"].se > ratings["b"].se


def test_true_strengths_lie_within_their_spread() -> None:
    rng, misses = np.random.default_rng(0), 0
    for _ in range(20):
        true = rng.normal(0, 150, 6)
        true -= true.mean()
        games = {}
        for i, j in itertools.combinations(range(6), 2):
            p = 1 / (1 + 10 ** (-(true[i] - true[j]) / 400))
            games[f"p{i}", f"p{j}"] = (200, float(rng.binomial(200, p)))
        ratings = rate(games)
        z = [(ratings[f"p{i}"].value - 1500 - true[i]) / ratings[f"p{i}"].se for i in range(6)]
        misses += sum(abs(x) > 2 for x in z)
    assert 1 <= misses <= 15  # 5% of 120


def test_a_score_beyond_the_games_is_refused() -> None:
    with pytest.raises(ValueError):
        rate({("a", "b"): (3, 4.0)})


def test_pay_offs_count_both_directions() -> None:
    games = {("a", "b"): (4, 3.0), ("b", "a"): (4, 3.0)}
    matrix = payoffs(games, ["a", "b", "c"])
    assert matrix[0, 1] == pytest.approx(0.5)
    assert matrix[1, 0] == pytest.approx(0.5)
    assert np.isnan(matrix[0, 0])
    assert np.isnan(matrix[2]).all()

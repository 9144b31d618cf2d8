"""Elo ratings of players with constant strength, fitted to all of their games at once.

Elo's model (Bradley and Terry 1952): a player rated ``d`` above another one scores
``1 / (1 + 10^(-d / 400))`` on average, where a draw is half a win. Ratings are the maximum a
posteriori estimate under a normal prior; their spread comes from the curvature there (Laplace's
approximation). Filters that update a rating game by game (Elo's own rule, TrueSkill, OpenSkill) are
for players that change. A snapshot doesn't, and its rating must not depend on the order of games.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

SCALE = 400.0 / np.log(10.0)  # points per factor e in the odds
MEAN, PRIOR = 1500.0, 400.0  # points: mean of all players, and the prior's deviation


class Rating(NamedTuple):
    """Rating in Elo points, 1500 on average; only differences matter."""

    value: float
    se: float  # standard error
    games: int


def rate(games: Mapping[tuple[str, str], tuple[int, float]]) -> dict[str, Rating]:
    """Return ratings by player, best first.

    Args:
        games: number of games of a pair, and the first player's total score, by pair.

    Raises:
        ValueError: a score isn't between 0 and the number of games.
    """
    names = sorted({name for pair in games for name in pair})
    index = {name: i for i, name in enumerate(names)}
    one, other, count, score = (
        np.array(column)
        for column in zip(
            *((index[a], index[b], n, s) for (a, b), (n, s) in games.items()), strict=True
        )
    )
    if ((score < 0) | (score > count)).any():
        raise ValueError("scores must be between 0 and the number of games")
    weight = (SCALE / PRIOR) ** 2  # of the prior

    def loss(x: np.ndarray) -> tuple[float, np.ndarray]:
        d = x[one] - x[other]
        expected = 1.0 / (1.0 + np.exp(-d))
        value = float(
            np.sum(count * np.logaddexp(0.0, d) - score * d) + 0.5 * weight * np.sum(x**2)
        )
        gradient = weight * x
        np.add.at(gradient, one, count * expected - score)
        np.add.at(gradient, other, score - count * expected)
        return value, gradient

    from scipy.optimize import minimize  # slow to import (0.5 s)

    x = minimize(loss, np.zeros(len(names)), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    d = x[one] - x[other]
    information = count / (2.0 + np.exp(d) + np.exp(-d))
    hessian = weight * np.eye(len(names))
    for i, j, value in zip(one, other, information, strict=True):
        hessian[i, i] += value
        hessian[j, j] += value
        hessian[i, j] -= value
        hessian[j, i] -= value
    mean_free = np.eye(len(names)) - 1.0 / len(names)  # only differences are determined
    covariance = mean_free @ np.linalg.inv(hessian) @ mean_free
    played = np.bincount(one, count, len(names)) + np.bincount(other, count, len(names))
    ratings = {
        name: Rating(
            MEAN + SCALE * float(x[i] - x.mean()),
            SCALE * float(np.sqrt(covariance[i, i])),
            int(played[i]),
        )
        for name, i in index.items()
    }
    return dict(sorted(ratings.items(), key=lambda item: -item[1].value))

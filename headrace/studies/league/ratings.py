"""Elo ratings of players with constant strength, fitted to all of their games at once.

Elo's model (Bradley and Terry 1952): of two players the one rated ``d`` higher scores
``1 / (1 + 10^(-d / 400))`` on average, where a draw is half a win. Ratings are the likeliest under
a normal prior, and their spread is from the curvature there (Laplace's approximation). Filters that
move a rating game by game (Elo's own rule, TrueSkill, OpenSkill) are for players who change: a
snapshot doesn't, and in which order it played would move its rating.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

SCALE = 400.0 / np.log(10.0)  # points for a factor e in the odds
MEAN, PRIOR = 1500.0, 400.0  # points: of all players together, and the prior's deviation


class Rating(NamedTuple):
    """Rating in Elo points, 1500 on average; only differences matter."""

    value: float
    se: float  # standard error
    games: int


def rate(games: Mapping[tuple[str, str], tuple[int, float]]) -> dict[str, Rating]:
    """Return ratings by player, best first.

    Args:
        games: of the first player against the second: how many, and the first's score in sum.

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

    from scipy.optimize import minimize  # takes half a second

    x = minimize(loss, np.zeros(len(names)), jac=True, method="BFGS", options={"gtol": 1e-6}).x
    d = x[one] - x[other]
    information = count / (2.0 + np.exp(d) + np.exp(-d))
    hessian = weight * np.eye(len(names))
    for i, j, value in zip(one, other, information, strict=True):
        hessian[i, i] += value
        hessian[j, j] += value
        hessian[i, j] -= value
        hessian[j, i] -= value
    mean_free = np.eye(len(names)) - 1.0 / len(names)  # only differences are known
    covariance = mean_free @ np.linalg.inv(hessian) @ mean_free
    played = np.bincount(one, count, len(names)) + np.bincount(other, count, len(names))
    found = {
        name: Rating(
            MEAN + SCALE * float(x[i] - x.mean()),
            SCALE * float(np.sqrt(covariance[i, i])),
            int(played[i]),
        )
        for name, i in index.items()
    }
    return dict(sorted(found.items(), key=lambda item: -item[1].value))

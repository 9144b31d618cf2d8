"""Plots the pay-off matrix of a league, and ratings over training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from headrace.games.league_folder import Snapshot
from headrace.studies import plotting
from headrace.studies.league.ratings import Rating

_NUMBERED = 16  # maximum number of players with numbers in the matrix


def payoffs(games: Mapping[tuple[str, str], tuple[int, float]], names: Sequence[str]) -> np.ndarray:
    """Return mean scores of rows against columns, ``[n, n]`` in [0, 1]; NaN without games.

    Args:
        games: as for :func:`headrace.studies.league.ratings.rate`.
    """
    index = {name: i for i, name in enumerate(names)}
    count, score = np.zeros((2, len(names), len(names)))
    for (one, other), (number, total) in games.items():
        if one in index and other in index:
            i, j = index[one], index[other]
            count[i, j] += number
            score[i, j] += total
            count[j, i] += number
            score[j, i] += number - total
    with np.errstate(invalid="ignore"):
        return np.where(count > 0, score / count, np.nan)


def draw(
    players: Sequence[Snapshot], matrix: np.ndarray, ratings: Mapping[str, Rating], path: Path
) -> None:
    """Write the plot.

    Args:
        players: players in the order of rows and columns. matrix: result of :func:`payoffs`.
    """
    title = "Pay-offs (mean score of the row: 1 wins, 0 loses) and ratings with standard errors"
    with plotting.picture(path, title, (11.5, 5.2), ncols=2) as (figure, (left, right)):
        shown = left.imshow(matrix, cmap="RdBu", vmin=0.0, vmax=1.0)
        names = [one.name for one in players]
        left.set_xticks(range(len(names)), names, rotation=90, fontsize="x-small")
        left.set_yticks(range(len(names)), names, fontsize="x-small")
        left.set_facecolor("lightgrey")
        if len(names) <= _NUMBERED:
            for (i, j), value in np.ndenumerate(matrix):
                if np.isfinite(value):
                    colour = "white" if abs(value - 0.5) > 0.35 else "black"
                    where = {"ha": "center", "va": "center", "color": colour}
                    left.text(j, i, f"{value:.2f}", fontsize="xx-small", **where)
        figure.colorbar(shown, ax=left, shrink=0.8)
        for k, run in enumerate(dict.fromkeys(one.run for one in players)):
            rated = [one for one in players if one.run == run and one.name in ratings]
            steps = [one.step for one in rated]
            values = [ratings[one.name].value for one in rated]
            spread = [ratings[one.name].se for one in rated]
            look = {"color": f"C{k}", "marker": "o", "markersize": 3, "capsize": 2}
            right.errorbar(steps, values, spread, label=run, **look)
        right.set(xlabel="environment steps of the run", ylabel="rating (Elo)")
        right.locator_params(axis="x", nbins=5)  # more labels would overlap
        right.grid(alpha=0.3)
        right.legend(fontsize="small")

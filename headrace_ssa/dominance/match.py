"""Paired games of two players: every game is played twice, with swapped sides."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import require
from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv
from headrace_ssa.dominance.players import Player
from headrace_ssa.dominance.scene import Scene

FIRST_GAME = 2_000_000  # default seed of the first game
COUNTS = ("points", "custody", "inspections", "burnt", "jammed", "collided")


class Match(NamedTuple):
    """Results of paired games."""

    mean: float  # mean return of the first player per game
    se: float  # its standard error, over pairs of games
    returns: np.ndarray  # [pairs] means of both games of each pair
    first: dict[str, float]  # mean of each of COUNTS per game, of the first player
    second: dict[str, float]

    @property
    def in_se(self) -> float:
        """Return the mean in standard errors: 0 if it is 0, infinite if only the error is 0."""
        if self.mean == 0.0:
            return 0.0
        return self.mean / self.se if self.se else float(np.copysign(np.inf, self.mean))


class Moment(NamedTuple):
    """One step of all games of a match; columns as in the environment."""

    scene: Scene  # all games after the step, valid until the next moment
    actions: np.ndarray  # [4 pairs] int, actions of the players
    reward: np.ndarray  # [4 pairs]
    infos: dict[str, Any]
    going: np.ndarray  # [4 pairs] bool, whether the game has not ended yet
    is_first: np.ndarray  # [4 pairs] bool, which columns the first player plays


def play(
    first: Player, second: Player, pairs: int, seed: int = FIRST_GAME, **settings: Any
) -> Match:
    """Play ``pairs`` games with the first player as blue, and the same games with it as red.

    Args:
        pairs: number of pairs, 2 or more: the standard error needs two.
        seed: seed of the first game; the next games use the next seeds.
        settings: ``n``, ``horizon`` and ``inclination`` of the game.

    Raises:
        ConfigError: pairs is too small, or a setting is invalid.
    """
    total, counts = np.zeros(1), {name: np.zeros(1) for name in COUNTS}
    for moment in moments(first, second, pairs, seed, **settings):
        total = total + moment.going * moment.reward
        for name in COUNTS:
            counts[name] = counts[name] + moment.going * moment.infos[name]
    is_first = moment.is_first
    returns = total[is_first].reshape(2, pairs).mean(axis=0)
    mean, se = float(returns.mean()), float(returns.std(ddof=1) / pairs**0.5)
    by_player = (
        {name: float(c[columns].mean()) for name, c in counts.items()}
        for columns in (is_first, ~is_first)
    )
    return Match(mean, se, returns, *by_player)


def moments(
    first: Player, second: Player, pairs: int, seed: int = FIRST_GAME, **settings: Any
) -> Iterator[Moment]:
    """Yield the steps of these games, played together, until the last one ends.

    Arguments and errors are those of :func:`play`.
    """
    require(pairs >= 2, "pairs", pairs, "at least 2, for a standard error (nearest: 2)")
    envs = OrbitalDominanceVectorEnv(4 * pairs, **settings)
    seeds = np.repeat(np.tile(np.arange(seed, seed + pairs), 2), 2)
    obs, infos = envs.reset(seed=[int(s) for s in seeds])
    columns = np.arange(4 * pairs)
    is_first = (columns % 2 == 0) == (columns < 2 * pairs)
    going = np.ones(4 * pairs, bool)
    while going.any():
        actions = np.zeros(4 * pairs, np.int64)
        for player, mask in ((first, is_first), (second, ~is_first)):
            actions[mask] = player(obs[mask], infos["action_mask"][mask])
        obs, reward, terminated, _, infos = envs.step(actions)
        yield Moment(envs.scene, actions, reward, infos, going, is_first)
        going = going & ~terminated

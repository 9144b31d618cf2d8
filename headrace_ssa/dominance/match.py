"""Paired games of two players: the same games twice, with the seats changed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from headrace.errors import require
from headrace_ssa.dominance.env import OrbitalDominanceVectorEnv
from headrace_ssa.dominance.players import Player
from headrace_ssa.dominance.scene import Scene

FIRST_GAME = 2_000_000  # its seed, where nobody asks for another
WHAT = ("points", "custody", "inspections", "burnt", "jammed", "collided")


class Match(NamedTuple):
    """What came of paired games."""

    mean: float  # return of a game of the first player
    se: float  # its standard error, over pairs of games
    returns: np.ndarray  # [pairs] means of both games of each pair
    first: dict[str, float]  # what happened in a game, of each of WHAT, of the first player
    second: dict[str, float]

    @property
    def in_se(self) -> float:
        """The mean in standard errors: 0 where it is 0, infinite where only the error is."""
        if self.mean == 0.0:
            return 0.0
        return self.mean / self.se if self.se else float(np.copysign(np.inf, self.mean))


class Moment(NamedTuple):
    """A step of every game of a match, once it was made; columns as in the environment."""

    scene: Scene  # after it, of all games, until the next moment is asked for
    actions: np.ndarray  # [4 pairs] int, what players chose
    reward: np.ndarray  # [4 pairs]
    infos: dict[str, Any]
    going: np.ndarray  # [4 pairs] bool, whether it belongs to the match: a game may have ended
    is_first: np.ndarray  # [4 pairs] bool, which columns the first player plays


def play(
    first: Player, second: Player, pairs: int, seed: int = FIRST_GAME, **settings: Any
) -> Match:
    """``pairs`` games in which the first player is blue, and the same ones in which it is red.

    Args:
        pairs: 2 or more: a standard error takes as many.
        seed: of the first game; the others take those that follow.
        settings: ``n``, ``horizon`` and ``inclination`` of the game.

    Raises:
        ConfigError: pairs is too small, or a setting is.
    """
    total, happened = np.zeros(1), {name: np.zeros(1) for name in WHAT}
    for moment in moments(first, second, pairs, seed, **settings):
        total = total + moment.going * moment.reward
        for name in WHAT:
            happened[name] = happened[name] + moment.going * moment.infos[name]
    mine = moment.is_first
    returns = total[mine].reshape(2, pairs).mean(axis=0)
    mean, se = float(returns.mean()), float(returns.std(ddof=1) / pairs**0.5)
    one, other = (
        {name: float(c[whose].mean()) for name, c in happened.items()} for whose in (mine, ~mine)
    )
    return Match(mean, se, returns, one, other)


def moments(
    first: Player, second: Player, pairs: int, seed: int = FIRST_GAME, **settings: Any
) -> Iterator[Moment]:
    """The steps of these games, all at once, until the last of them has ended.

    Args and errors are those of :func:`play`.
    """
    require(pairs >= 2, "pairs", pairs, "at least 2, so that there is an error (nearest: 2)")
    envs = OrbitalDominanceVectorEnv(4 * pairs, **settings)
    seeds = np.repeat(np.tile(np.arange(seed, seed + pairs), 2), 2)
    obs, infos = envs.reset(seed=[int(s) for s in seeds])
    columns = np.arange(4 * pairs)
    is_first = (columns % 2 == 0) == (columns < 2 * pairs)
    going = np.ones(4 * pairs, bool)
    while going.any():
        actions = np.zeros(4 * pairs, np.int64)
        for player, whose in ((first, is_first), (second, ~is_first)):
            actions[whose] = player(obs[whose], infos["action_mask"][whose])
        obs, reward, terminated, _, infos = envs.step(actions)
        yield Moment(envs.scene, actions, reward, infos, going, is_first)
        going = going & ~terminated

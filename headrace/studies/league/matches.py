"""Plays games between snapshots, equally often in either seat."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium.vector import VectorEnv

from headrace.actors.episodes import Limits, Patience, time_limit
from headrace.errors import ConfigError, nearest
from headrace.games.frozen_opponents import FrozenOpponents, Load
from headrace.games.infos import MOVED
from headrace.games.league_folder import Snapshot, newest, snapshots
from headrace.games.progress import GameProgress
from headrace.games.vector import agents_of
from headrace.nn.inputs import info_mask
from headrace.ops import tree

MOST_GAMES = 64  # games in parallel


class MatchResult(NamedTuple):
    """Results of games of ``one`` against ``other``."""

    one: str
    other: str
    games: int
    wins: int  # of one
    draws: int
    mean: float  # return of one
    se: float  # its standard error
    by_seat: tuple[float, ...]  # mean return of one in each seat

    @property
    def score(self) -> float:
        """Total score of ``one``: 1 for a win, 0.5 for a draw."""
        return self.wins + 0.5 * self.draws

    @property
    def losses(self) -> int:
        """Number of losses of ``one``."""
        return self.games - self.wins - self.draws

    @staticmethod
    def of(values: dict[str, Any]) -> MatchResult:
        """Restore a result from its ``_asdict`` form."""
        return MatchResult(**{**values, "by_seat": tuple(values["by_seat"])})


def pair(league: Path, names: Sequence[str]) -> list[Snapshot]:
    """Return two snapshots of a league by name; a run's name stands for its newest.

    Raises:
        ConfigError: a name is unknown, or both are the same; the message has the nearest.
    """
    every, chosen = snapshots(league), []
    for name in names:
        of_run = [one for one in every if name in (one.name, one.run)]
        if not of_run:
            valid = dict.fromkeys([*(one.name for one in every), *(one.run for one in every)])
            last = ", ".join(list(valid)[-3:])
            hint = nearest(name, valid) or f" Choose among {last} …"
            raise ConfigError(f"play={name!r} isn't a snapshot of {league}.{hint}")
        exact = [one for one in of_run if one.name == name]
        chosen.append(newest(exact or of_run))
    if chosen[0] == chosen[1]:
        others = [one for one in every if one != chosen[0]]
        near = min(others, key=lambda one: abs(one.step - chosen[0].step), default=None)
        raise ConfigError(
            f"play={' '.join(names)!r} is {chosen[0].name} against itself: name two different "
            f"snapshots{f' (nearest: {chosen[0].name} {near.name})' if near else ''}"
        )
    return chosen


def play(
    games: VectorEnv,
    players: tuple[Snapshot, Snapshot],
    episodes: int,
    seed: int,
    load: Load,
    limits: Limits = Limits(),  # noqa: B008
) -> MatchResult:
    """Play complete games between two snapshots; the second one plays all seats except one.

    The first player's seat rotates from game to game, so that seats have equal numbers of games as
    far as possible. All parallel games play equally many games, so short games don't count more.

    Args:
        games: vector environment whose columns are agents, game by game.
        episodes: number of games, at least one.
        limits: steps per game, and seconds for all games together.

    Raises:
        ConfigError: games didn't end within the limits.
    """
    num_agents = len(agents_of(games))
    num_games = games.num_envs // num_agents
    spaces = games.single_observation_space, games.single_action_space
    frozen = FrozenOpponents(load, spaces, games.num_envs)
    frozen.seed(seed)
    obs, infos = games.reset(seed=seed)
    progress = GameProgress(games)
    progress.reset(infos)
    moved = np.ones(games.num_envs, bool)  # columns whose steps are complete
    left = np.full(num_games, episodes // num_games)
    left[: episodes % num_games] += 1
    begun = np.concatenate([[0], np.cumsum(left)[:-1]])  # numbers of the games, over all columns
    results: list[tuple[int, float, float]] = []  # seat, first player's return, the others' mean
    steps = np.zeros(num_games, int)  # of the games in progress
    names = " against ".join(one.name for one in players)
    patience = Patience(limits.timeout_s)
    while left.any():
        seats = begun % num_agents
        is_first = (np.arange(num_agents) == seats[:, None]).ravel()
        columns = np.flatnonzero(~progress.gone & moved)
        if len(columns):
            each = [players[0] if is_first[c] else players[1] for c in columns.tolist()]
            frozen.act(each, columns, (obs, info_mask(infos), progress.reward, progress.first))
        actions = tree.map_leaves(np.copy, frozen.actions)
        obs, reward, terminated, truncated, infos = games.step(actions)
        moved = np.asarray(infos.get(MOVED, moved))
        ended = progress.record(moved, reward[moved], (terminated | truncated)[moved])
        over = ended & (left > 0)
        steps = np.where(over | (left == 0), 0, steps + 1)
        is_late = patience.is_over(
            lambda: f"{names}: {len(results):,} of {episodes:,} games have ended"
        )
        if steps.max() >= limits.max_steps or (is_late and left.any()):
            frozen.close()
            unfinished = int((steps >= limits.max_steps).sum()) or episodes - len(results)
            line = limits.exceeded(unfinished, episodes, steps.max())
            raise ConfigError(f"{names}: {line}; train with {time_limit()}")
        for g in np.flatnonzero(over).tolist():
            returns = progress.totals[g]
            first = returns[seats[g]]
            results.append((int(seats[g]), first, (returns.sum() - first) / (num_agents - 1)))
        left[over] -= 1
        begun[over & (left > 0)] += 1
    frozen.close()
    return _match(players, results, num_agents)


def _match(
    players: tuple[Snapshot, Snapshot], results: list[tuple[int, float, float]], num_agents: int
) -> MatchResult:
    seats, first, others = (np.array(x) for x in zip(*results, strict=True))
    se = float(first.std(ddof=1) / np.sqrt(len(first))) if len(first) > 1 else float("nan")
    return MatchResult(
        players[0].name,
        players[1].name,
        len(first),
        int((first > others).sum()),
        int((first == others).sum()),
        float(first.mean()),
        se,
        tuple(float(first[seats == s].mean()) for s in range(num_agents) if (seats == s).any()),
    )


def all_pairs(players: Sequence[Snapshot]) -> list[tuple[Snapshot, Snapshot]]:
    """Return all pairs."""
    return list(itertools.combinations(players, 2))

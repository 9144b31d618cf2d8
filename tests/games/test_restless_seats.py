"""Seats of games in which agents join and leave at random: each own step arrives once."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds.restless import NAMES, Entry, Restless, RestlessTurns, ledger

from headrace.envs.make import make_vec
from headrace.games.infos import ABSENT
from headrace.games.opponent_env import OpponentEnv
from headrace.games.opponent_mix import OpponentMix
from headrace.games.vector import in_turns
from headrace.nn import Network, Policy
from tests.games.test_opponent_env import Fixed

BOTH, ALONE, SEED = 2, 3, 9
COLUMNS = BOTH * len(NAMES) + ALONE


def made(world: Any) -> tuple[Any, Fixed]:
    """Return two games with all seats, and three with one."""
    games: Any = make_vec(world, BOTH + ALONE, "sync")

    def load(path: Path) -> Policy:
        torch.manual_seed(0)
        return Policy(games.single_observation_space, games.single_action_space, Network((4,)))

    draw: Any = Fixed("a", "b", load=load)
    mixture = OpponentMix.of("latest:0.7,uniform:0.3")
    assert mixture.games(COLUMNS, len(NAMES)) == (BOTH, ALONE)
    return OpponentEnv(games, COLUMNS, len(NAMES), mixture, draw), draw


def steps_of(envs: Any, rounds: int) -> list[list[tuple[Entry, int]]]:
    """Return steps by column with the action, without reset steps."""
    obs, infos = envs.reset(seed=SEED)
    rng, steps = np.random.default_rng(0), [list[tuple[Entry, int]]() for _ in range(COLUMNS)]
    sees, gone, rows = np.array(obs), np.array(infos[ABSENT]), np.arange(COLUMNS)
    action = np.zeros(COLUMNS, np.int64)
    for _ in range(rounds):
        action[rows] = rng.integers(0, 3, len(rows))
        if in_turns(envs.games):
            envs.send(rows, action[rows])
            rows = envs.receive()
            after, reward, *ends = envs.results(rows)
        else:
            after, reward, *ends, _ = envs.step(action)
        for k, i in enumerate(rows.tolist()):
            flags = bool(ends[0][k]), bool(ends[1][k])
            if not gone[i]:
                seen = [tuple(x.astype(int).tolist()) for x in (sees[i], after[k])]
                steps[i].append((Entry(seen[0], float(reward[k]), flags, seen[1]), action[i]))
            sees[i], gone[i] = after[k], any(flags)
    return steps


@pytest.mark.parametrize("world", [pytest.param(Restless, marks=pytest.mark.full), RestlessTurns])
def test_a_learner_sees_each_step_of_its_own_seats_once(world: Any) -> None:
    envs, draw = made(world)
    with contextlib.closing(envs):
        steps = steps_of(envs, 250)
    actions = {one.before: done for column in steps for one, done in column}
    games = [
        ledger(world is RestlessTurns, SEED + g, 90, lambda x: actions.get(x, 0))
        for g in range(BOTH + ALONE)
    ]
    seats_seen = []
    for c, column in enumerate(steps):
        is_both = c < BOTH * len(NAMES)
        own = games[c // len(NAMES) if is_both else c - BOTH * len(NAMES) + BOTH]
        game_of = {one.before: k for k, game in enumerate(own) for each in game for one in each}
        played: dict[int, list[Entry]] = {}
        for one, _ in column:
            played.setdefault(game_of[one.before], []).append(one)
        assert list(played) == sorted(played)
        assert len(played) > 8
        for k in list(played)[:-1]:
            seat = played[k][0].before[1]
            assert played[k] == own[k][seat]
            seats_seen.append(seat)
            assert not is_both or seat == c % len(NAMES)
    assert set(seats_seen[-40:]) == {0, 1, 2, 3}, "the seat goes round"
    assert len(draw.noted) > 20

"""Declared zero-sum rewards are checked, per step or over a turn-based game."""

from __future__ import annotations

import contextlib
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from worlds.games import CountingTurns

import headrace as hr
from headrace.envs.make import make_vec
from headrace.errors import EnvironmentFault
from headrace.games.zero_sum import checked_zero_sum
from tests.games.test_league_runs import PPO, QUICK, train


def test_a_promise_of_zero_sum_is_held(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"zero_sum=True.*step 1 .*even 2, odd -1|even -2"):
        train(tmp_path / "x", total_steps=500, zero_sum=True, opponents=None,
              snapshot_every_steps=None, env_kwargs={"prize": 2.0})  # fmt: skip


class FairTurns(CountingTurns):
    """Every second game ends before some have a turn; the moving agent pays the others."""

    def __init__(self, bonus: float = 0.0) -> None:
        super().__init__()
        self._bonus = bonus

    @staticmethod
    def moves(game: int) -> int:
        return 2 if game % 2 else 9

    @staticmethod
    def lives(game: int) -> int:
        return 100

    def reset(self, seed=None, options=None):
        super().reset(seed, options)
        self._sums = dict.fromkeys(self.agents, 0.0)
        self._cumulative_rewards = self._sums

    def step(self, action):
        i, before = self.agent_selection, dict(self._sums)
        moves = action is not None
        super().step(action)
        if moves:
            self._sums.update(before)
            self._sums[i] = -2.0 + self._bonus
            for j in set(self.possible_agents) - {i}:
                self._sums[j] += 1.0


@pytest.mark.parametrize("abrupt", [False, True])
def test_zero_sum_in_turns_is_of_a_whole_game(abrupt: bool) -> None:
    """Includes rewards before an agent's first move, or without a turn."""

    class Game(FairTurns):
        def _select(self) -> None:
            if abrupt and any(self.terminations.values()):
                self.agents = []
            super()._select()

    for bonus in (0.0, 0.5):
        envs: Any = checked_zero_sum(make_vec(partial(Game, bonus), 2, "sync"), "Game")
        envs.reset(seed=0)
        actions = np.zeros(6, np.int64)
        words = r"zero_sum=True promises: the returns of game \d add up to 4.5 \(0 .*, 1 .*, 2 "
        with pytest.raises(EnvironmentFault, match=words) if bonus else contextlib.nullcontext():
            for _ in range(60):
                envs.step(actions)


def test_a_promise_of_zero_sum_is_held_in_turns(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="zero_sum=True promises: the returns of game"):
        hr.train(CountingTurns, PPO, run_dir=str(tmp_path / "x"), zero_sum=True, **QUICK
                 | {"snapshot_every_steps": None}, total_steps=2_000)  # fmt: skip

"""Checks that the rewards of zero-sum games add up to 0."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv, VectorWrapper

from headrace.errors import EnvironmentFault
from headrace.games.progress import GameProgress
from headrace.games.vector import agents_of, in_turns

_SLACK = 1e-5  # relative to the largest reward, for sums of float32


def checked_zero_sum(games: VectorEnv, name: str) -> VectorEnv:
    """Wrap games to raise if rewards don't add up to 0.

    Simultaneous games are checked at each step. In turn-based games a reward is reported only at
    the agent's next turn, so each game's returns are checked.

    Args:
        games: columns are agents, game by game.
        name: name of the environment, for messages.
    """
    if not in_turns(games):
        return ZeroSum(games, name)
    games.on_end = partial(_check_returns, name, games.agents)
    return games


def _check_returns(name: str, agents: Sequence[str], game: int, returns: np.ndarray) -> None:
    if _is_off(returns[None])[0]:
        raise _fault(name, f"the returns of game {game}", agents, returns)


def _is_off(rewards: np.ndarray) -> np.ndarray:
    """Return which rows of rewards ``[G, n]`` don't add up to 0, ``[G]`` bool."""
    return np.asarray(np.abs(rewards.sum(1)) > _SLACK * np.maximum(1.0, np.abs(rewards).max(1)))


def _fault(
    name: str, quantity: str, agents: Sequence[str], rewards: np.ndarray
) -> EnvironmentFault:
    each = zip(agents, rewards.tolist(), strict=True)
    listed = ", ".join(f"{agent} {value:g}" for agent, value in each)
    return EnvironmentFault(
        f"{name} isn't zero-sum, which zero_sum=True promises: {quantity} add up to "
        f"{rewards.sum():g} ({listed})"
    )


class ZeroSum(VectorWrapper):
    """Checks that the rewards of simultaneous games add up to 0 at each step.

    Args:
        games: columns are agents, game by game.
        name: name of the environment, for messages.

    ``step`` raises EnvironmentFault naming the game's step, its agents and their rewards.
    """

    def __init__(self, games: VectorEnv, name: str) -> None:
        super().__init__(games)
        self.agents, self._name, self._progress = agents_of(games), name, GameProgress(games)

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        """Begin all games."""
        obs, infos = self.env.reset(**how)
        self._progress.reset(infos)
        self._steps = np.zeros(len(self._progress.over), int)
        return obs, infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step every game."""
        returned = self.env.step(actions)
        _, reward, terminated, truncated, _ = returned
        progress, restarts = self._progress, self._progress.over
        progress.record(slice(None), reward, np.logical_or(terminated, truncated))
        self._steps = np.where(restarts, 0, self._steps + 1)
        rewards = progress.reward.reshape(progress.totals.shape)
        if len(wrong := np.flatnonzero(_is_off(rewards))):
            game = int(wrong[0])
            quantity = f"the rewards at step {self._steps[game]} of game {game}"
            raise _fault(self._name, quantity, self.agents, rewards[game])
        return returned

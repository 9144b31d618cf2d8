"""A game is an environment with a row per agent, whatever engine steps it."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from worlds import CountingGame, CountingTurns, Matching

from headrace.envs.contract import Contract
from headrace.envs.make import make_vec
from headrace.games.game_env import GameEnv
from headrace.games.infos import COMPLETE, FLAGS, OVER, TERMINATED
from headrace.games.progress import GameProgress


def test_the_reward_of_a_game_has_a_row_per_agent() -> None:
    game = Matching(length=2)
    env = GameEnv(game, "Matching", 100, Contract)
    obs, info = env.reset(seed=0)
    for last in (False, True):
        actions = np.array([obs[0].argmax(), (obs[1].argmax() + 1) % 3])  # right, wrong
        obs, reward, terminated, truncated, info = env.step(actions)
        assert reward.tolist() == [1.0, 0.0]
        assert not terminated
        assert not truncated, "the game restarts by itself"
        assert info[FLAGS][TERMINATED].tolist() == [last, last]
        assert info[FLAGS][COMPLETE].all()
    _, reward, _, _, info = env.step(actions)  # the next game
    assert reward.tolist() == [0.0, 0.0]
    assert not info[FLAGS][TERMINATED].any()


def test_a_turn_based_game_flags_whose_step_is_complete() -> None:
    env = GameEnv(CountingTurns(), "CountingTurns", 100, Contract)
    _, info = env.reset(seed=0)
    first = info[FLAGS][COMPLETE] & ~info[FLAGS][TERMINATED]
    assert first.sum() == 1, "the first mover sees its row, the others are absent"
    for _ in range(20):
        begins = info[FLAGS][COMPLETE].copy()  # the next step overwrites it
        _, reward, _, _, info = env.step((np.zeros(3, np.int64), begins))
        assert reward.shape == (3,)
        assert info[FLAGS][COMPLETE].any()
        assert len(set(info[FLAGS][OVER].tolist())) == 1


def test_a_game_needs_no_method_close() -> None:
    game = Matching()
    methods = ("observation_space", "action_space", "reset", "step")
    bare = SimpleNamespace(**{name: getattr(game, name) for name in ("possible_agents", *methods)})
    GameEnv(bare, "Matching", 100, Contract).close()


@pytest.mark.parametrize("engine", ["sync", "threads", "async"])
@pytest.mark.parametrize("env", [CountingGame, CountingTurns])
def test_engines_carry_a_reward_per_agent(env: Any, engine: str) -> None:
    with contextlib.closing(make_vec(env, 2, engine)) as envs:
        games: Any = envs
        rewards = []
        step = games.games.step

        def kept(actions: Any) -> Any:
            returned = step(actions)
            rewards.append(returned[1].copy())
            return returned

        games.games.step = kept
        envs.reset(seed=0)
        paid = [envs.step(np.zeros(envs.num_envs, np.int64))[1] for _ in range(12)]
    assert {one.shape for one in rewards} == {(2, 3)}
    assert np.any(rewards)
    for one, column in zip(rewards, paid, strict=True):
        assert np.all((column == one.ravel()) | (column == 0.0))


class NamedGame(gymnasium.Env[Any, Any]):
    """A single-agent environment whose metadata has a key "game"."""

    metadata: ClassVar[dict[str, Any]] = {"game": "catch"}
    observation_space = gymnasium.spaces.Box(0.0, 1.0, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, **how: Any) -> tuple[Any, dict[str, Any]]:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.zeros(2, np.float32), 1.0, False, False, {}


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_metadata_of_an_environment_does_not_make_it_a_game(engine: str) -> None:
    with contextlib.closing(make_vec(NamedGame, 2, engine)) as envs:
        envs.reset(seed=0)
        assert envs.step(np.zeros(2, np.int64))[1].tolist() == [1.0, 1.0]
    assert envs.metadata["game"] == "catch"


def test_progress_counts_a_game_once_and_no_reward_of_a_filler() -> None:
    progress = GameProgress(SimpleNamespace(num_envs=4, agents=("a", "b")))
    progress.reset({"absent": np.array([False, False, False, True])})

    def record(rewards: list[float], ended: list[int]) -> list[bool]:
        return progress.record(slice(None), np.array(rewards), np.array(ended, bool)).tolist()

    assert record([1.0, 2.0, 3.0, 9.0], [0, 1, 0, 1]) == [False, False]
    assert progress.totals.tolist() == [[1.0, 2.0], [3.0, 0.0]]  # one is absent
    assert progress.first.tolist() == [False, False, False, True]
    assert record([1.0, 9.0, 1.0, 9.0], [1, 1, 0, 0]) == [True, False]
    assert progress.totals.tolist() == [[2.0, 2.0], [4.0, 0.0]]
    assert record([9.0, 9.0, 1.0, 1.0], [0, 0, 0, 0]) == [False, False]
    assert progress.totals.tolist() == [[0.0, 0.0], [5.0, 1.0]], "the next game begins at 0"
    assert progress.first.tolist() == [True, True, False, False]

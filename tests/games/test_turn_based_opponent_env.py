"""Turn-based games: a learner's step lasts from its move to its next turn."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from worlds import CountingTurns

import headrace as hr
from headrace.envs.make import make_vec
from headrace.games.infos import ABSENT
from headrace.games.opponent_env import OpponentEnv
from headrace.games.opponent_mix import OpponentMix
from headrace.nn import Network, Policy
from headrace.rundir import league_writer
from tests.games.test_opponent_env import Fixed


def made(games: int, columns: int, text: str, **kwargs: Any) -> tuple[OpponentEnv, Fixed]:
    envs: Any = make_vec(CountingTurns, games, env_kwargs={"num_agents": 3, **kwargs})
    spaces = envs.single_observation_space, envs.single_action_space

    def load(path: Path) -> Policy:
        torch.manual_seed(0)
        return Policy(*spaces, Network((8,)), "mask" in kwargs)

    draw: Any = Fixed("a", "b", load=load)
    return OpponentEnv(envs, columns, 3, OpponentMix.of(text), draw), draw


def run(envs: OpponentEnv, rounds: int, masked: bool = False) -> list[list[tuple[Any, ...]]]:
    """Return (label before, action, reward, terminated, truncated, label after) by column."""
    obs, infos = envs.reset(seed=0)
    rng, count = np.random.default_rng(0), envs.num_envs
    label, gone = np.array(obs), np.array(infos[ABSENT])
    steps: list[list[tuple[Any, ...]]] = [[] for _ in range(count)]
    rows, action = np.arange(count), np.zeros(count, np.int64)
    for _ in range(rounds):
        action[rows] = rng.integers(0, 2, len(rows))
        if masked:
            mask = envs.infos(rows)["action_mask"]
            action[rows] = [rng.choice(np.flatnonzero(mask[i])) for i in rows]
        envs.send(rows, action[rows])
        rows = envs.receive()
        assert envs.num_busy == 0
        assert len(rows)
        after, reward, terminated, truncated = envs.results(rows)
        for i, new, r, a, b in zip(rows, after, reward, terminated, truncated, strict=True):
            if gone[i]:
                assert r == 0
            else:
                steps[i].append((label[i].copy(), action[i], r, a, b, new.copy()))
            label[i], gone[i] = new, a or b
    return steps


def check(steps: list[tuple[Any, ...]]) -> list[tuple[int, int]]:
    """Check that each step of a column's seat arrives once; return games and seats."""
    played, before = [], None
    for label, action, reward, terminated, truncated, after in steps:
        _, agent, game, age, _, move = map(int, label)
        if age == 0:
            assert before is None
            played.append((game, agent))
        else:
            assert before is not None
            np.testing.assert_array_equal(label, before)
        until = int(after[5])
        want = sum(3 * k + agent + 1 for k in range(move, until)) + 0.25 * action
        assert reward == want
        assert after[:5].astype(int).tolist() == [label[0], agent, game, age + 1, action]
        dies = agent == 0 and age + 1 == CountingTurns.lives(game)
        over = dies or until == CountingTurns.moves(game)
        assert terminated == (over and CountingTurns.terminates(agent, game))
        assert truncated == (over and not CountingTurns.terminates(agent, game))
        before = None if over else after
    return played


@pytest.mark.parametrize("mask", ["none", "info"])
def test_each_move_of_the_learners_seats_arrives_once(mask: str) -> None:
    kwargs = {} if mask == "none" else {"mask": mask}
    envs, draw = made(5, 2 * 3 + 3, "latest:0.6,pfsp:0.4", **kwargs)
    steps = run(envs, 150, masked=bool(kwargs))
    for column, each in enumerate(steps):
        played = check(each)
        assert len(played) > 8
        games, seats = zip(*played, strict=True)
        assert games == tuple(range(len(games)))
        if column < 6:
            assert set(seats) == {column % 3}
        else:  # the seat goes round
            first = (column - 6 + 2) % 3
            assert seats == tuple((first + i) % 3 for i in range(len(seats)))
    assert len(draw.noted) > 20
    assert {score for _, score in draw.noted} <= {0.0, 0.5, 1.0}


def test_the_learners_result_is_that_of_its_seat() -> None:
    """Agent 2 gets more than the others' mean, agent 0 less, and agent 0 dies early."""
    envs, draw = made(3, 3, "uniform")
    told: list[tuple[int, float]] = []
    matches = envs._matches
    draw.note = lambda opponent, score: told.append((score,))  # type: ignore[assignment]
    note = matches.note

    def noting(over: np.ndarray, totals: np.ndarray) -> None:
        count = len(told)
        seats = matches.seats[np.flatnonzero(over[matches._alone])].tolist()
        note(over, totals)
        told[count:] = [(seat, score[0]) for seat, score in zip(seats, told[count:], strict=True)]

    matches.note = noting  # type: ignore[method-assign]
    run(envs, 80)
    assert {score for seat, score in told if seat == 2} == {1.0}
    assert {score for seat, score in told if seat == 0} == {0.0}


def test_the_same_seed_plays_the_same_games() -> None:
    one, other = (run(made(3, 5, "latest:0.5,uniform:0.5")[0], 60) for _ in range(2))
    for a, b in zip(one, other, strict=True):
        for x, y in zip(a, b, strict=True):
            np.testing.assert_array_equal(np.hstack(x), np.hstack(y))


def test_a_run_in_turns_plays_its_league(tmp_path: Path) -> None:
    hr.train(
        CountingTurns, hr.PPO(epochs=1, minibatches=2), opponents="latest:0.5,pfsp:0.5",
        num_actors=1, envs_per_actor=6, fragment_length=16, total_steps=1500, eval_episodes=0,
        network=hr.Network((8,)), transport="serial", run_dir=str(tmp_path / "x"),
    )  # fmt: skip
    games = league_writer.new_games(tmp_path / "x" / "league", "x", {})
    assert sum(count for count, _ in games.values()) >= 16
    from headrace.studies.league.command import show_league

    show_league(tmp_path / "x", ("x-0", "x"), 12, 12, 0, False, tmp_path / "picture.png")
    match = json.loads(league_writer.match_files(tmp_path / "x" / "league")[0].read_text())
    assert match["games"] == 12
    assert len(match["by_seat"]) == 3

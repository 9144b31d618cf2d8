"""The benchmark of the satellite games with few episodes."""

from __future__ import annotations

import csv
import importlib

import numpy as np
import pytest


@pytest.fixture
def satellites():
    return importlib.import_module("satellites")


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_players_play_the_same_episodes_and_only_the_first_of_each(satellites):
    def wait(obs, mask):
        return np.zeros(len(obs), int)

    returns, happened = satellites.play(wait, 40)
    assert set(returns) <= {0.0, -100.0}  # a second episode could collide again
    assert happened["collisions"] == pytest.approx(np.mean(returns < 0))
    assert happened["burns"] == happened["avoided"] == happened["false_alarms"] == 0
    again, _ = satellites.play(wait, 40)
    assert np.array_equal(returns, again)
    greedy, burnt = satellites.play(satellites.baselines.greedy(), 40)
    assert burnt["burns"] > 0
    assert greedy.mean() > returns.mean()


def test_the_studies_write_a_row_for_each_player_and_pair_their_differences(
    satellites, tmp_path, monkeypatch
):
    monkeypatch.setattr(satellites, "policy_player", lambda folder: satellites.PLAYERS["greedy"]())
    monkeypatch.setattr(satellites, "train", lambda args, recipe, seed: (tmp_path, 1.0))
    args = satellites.Args(studies="conjunction", seeds=1, episodes=30, output=tmp_path)
    satellites.main(args)
    *others, trained = rows_of(tmp_path / "conjunction.csv")
    assert [row["player"] for row in others] == ["random", "round-robin", "greedy"]
    # The policy that stands in for the trained one is the greedy player itself.
    assert trained["mean"] == others[2]["mean"]
    assert float(trained["over_greedy"]) == 0.0
    gap = float(trained["mean"]) - float(others[0]["mean"])
    assert float(trained["over_random"]) == pytest.approx(gap)
    assert (tmp_path / "conjunction.png").exists()


@pytest.mark.slow
def test_the_simple_game_is_trained_and_compared_with_its_optimum(satellites, tmp_path):
    args = satellites.Args(
        studies="simple,speed", seeds=1, episodes=50, total_steps=10_000, seconds=0.05,
        num_envs=4, output=tmp_path,
    )  # fmt: skip
    satellites.main(args)
    (row,) = rows_of(tmp_path / "simple.csv")
    assert 0.2 < float(row["share"]) < 1.0
    assert float(row["share"]) == pytest.approx(float(row["mean"]) / float(row["optimum"]))
    assert [r["engine"] for r in rows_of(tmp_path / "speed.csv")] == ["native", "sync"] * 2

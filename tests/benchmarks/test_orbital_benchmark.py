"""The benchmark of the wargame, made small."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
from pathlib import Path
from types import SimpleNamespace

import imageio.v2 as imageio
import numpy as np
import pytest

import headrace as hr
from headrace import Network
from headrace.errors import ConfigError
from headrace.recipes import recipe

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def runs(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("orbital_runs")


@pytest.fixture
def orbital(runs):
    return importlib.import_module("orbital")


@pytest.fixture
def trains(runs, monkeypatch):
    """Instead of the command: a recipe made small; the flags that it was given, run by run."""
    asked = []

    def train_command(algorithm, folder, limit_s, **flags):
        asked.append(flags)
        config = dataclasses.replace(
            recipe(flags["recipe"], algorithm),
            env_kwargs={"horizon": 20},
            envs_per_actor=8,
            fragment_length=8,
            batch_size=64,
            total_steps=200,
            snapshot_every_steps=64,
            transport="serial",
            eval_episodes=0,
            run_dir=str(folder),
        )
        with contextlib.closing(hr.Trainer(config)) as trainer:
            list(trainer)
        return SimpleNamespace(wall_s=1.5, timed_out=False)

    monkeypatch.setattr(runs, "train_command", train_command)
    return asked


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_trained_policies_meet_every_scripted_player(orbital, runs, tmp_path, monkeypatch):
    pursuit = orbital.PLAYERS["pursuit"]
    monkeypatch.setattr(orbital, "PLAYERS", {"hold": orbital.PLAYERS["hold"], "pursuit": pursuit})
    monkeypatch.setattr(orbital, "policy_player", lambda folder: pursuit())
    asked = []
    monkeypatch.setattr(
        runs,
        "train_command",
        lambda *args, **flags: asked.append(flags) or SimpleNamespace(wall_s=1.5, timed_out=False),
    )
    args = orbital.Args(studies="trained,trained", seeds=1, pairs=6, output=tmp_path)
    orbital.main(args)
    assert [flags["seed"] for flags in asked] == [100]  # and not once more for the second study
    rows = rows_of(tmp_path / "trained.csv")
    assert [row["second"] for row in rows] == ["hold", "pursuit"]
    assert {row["seconds"] for row in rows} == {"1.5"}
    # The policy that stands in for the trained one is a scripted player itself.
    assert float(rows[1]["return"]) == 0.0
    points = float(rows[0]["points of first"]) - float(rows[0]["points of second"])
    assert float(rows[0]["return"]) == pytest.approx(points)
    assert float(rows[0]["return"]) > 3 * float(rows[0]["se"]) > 0
    with pytest.raises(ConfigError, match="total_steps=None instead of 10"):
        orbital.main(dataclasses.replace(args, total_steps=10))


def test_the_snapshots_of_each_run_are_rated(orbital, trains, tmp_path):
    orbital.main(orbital.Args(studies="league", seeds=1, pairs=4, output=tmp_path))
    (row,) = rows_of(tmp_path / "league.csv")
    rated = rows_of(tmp_path / "ratings.csv")
    assert (row["run"], int(row["snapshots"])) == ("appo-100", len(rated))
    assert len(rated) >= 3
    assert [one["steps"] for one in rated] == sorted((one["steps"] for one in rated), key=int)
    others = len(rated) - 1
    assert {int(one["games"]) for one in rated} == {4 * others}
    assert float(rated[0]["value"]) == float(row["first"])
    assert (tmp_path / "ratings.png").exists()
    assert (tmp_path / "appo-100-league.png").exists()


def test_ratings_that_rise_have_a_rank_correlation_of_1(orbital):
    rise = importlib.import_module("orbital_league").rise
    values = [1200.0, 1500.0, 1700.0, 1600.0]
    rated = [{"steps": i, "value": value, "se": 10.0 + i} for i, value in enumerate(values)]
    assert rise(rated[:3])["rank correlation"] == pytest.approx(1.0)
    whole = rise(rated)
    assert whole["rank correlation"] == pytest.approx(0.8)  # 1 - 6 (1 + 1) / (4 * 15)
    assert (whole["first"], whole["first se"]) == (1200.0, 10.0)
    assert (whole["last"], whole["last se"]) == (1600.0, 13.0)
    assert (whole["best"], whole["best steps"]) == (1700.0, 2)


def test_an_exploiter_begins_as_the_final_policy_and_meets_it(orbital, runs, tmp_path, monkeypatch):
    asked = []

    def train_command(algorithm, folder, limit_s, **flags):
        asked.append((folder, flags))
        return SimpleNamespace(wall_s=2.0, timed_out=False)

    def stand_in(folder, deterministic=True):
        name = "pursuit" if folder.name.endswith("exploiter") else "hold"
        return runs.PLAYERS[name if deterministic else "random"]()

    monkeypatch.setattr(runs, "train_command", train_command)
    monkeypatch.setattr(importlib.import_module("orbital_league"), "policy_player", stand_in)
    args = orbital.Args(
        studies="exploiter", seeds=1, pairs=6, exploit_steps=77, total_steps=50, output=tmp_path
    )
    orbital.main(args)
    (final, whole), (exploiter, flags) = asked
    assert (final.name, exploiter.name) == ("appo-100", "appo-100-exploiter")
    assert whole["total_steps"] == 50
    assert (flags["exploit"], flags["init_from"], flags["total_steps"]) == (final, final, 77)
    rows = rows_of(tmp_path / "exploiter.csv")
    met = [(row["first"], row["second"]) for row in rows]
    assert met == [("exploiter", "final"), ("exploiter", "final, drawn"), ("final", "final, drawn")]
    returns = [float(row["return"]) for row in rows]
    assert all(value > 0 for value in returns)  # of pursuit, pursuit, and hold against random


def test_any_two_meet_and_speed_is_counted(orbital, tmp_path, monkeypatch):
    few = {name: orbital.PLAYERS[name] for name in ("hold", "random", "tracker")}
    monkeypatch.setattr(orbital, "PLAYERS", few)
    args = orbital.Args(
        studies="match,scripted,speed", first="tracker", second="hold", pairs=3, num_envs=4,
        seconds=0.05, output=tmp_path,
    )  # fmt: skip
    orbital.main(args)
    (one,) = rows_of(tmp_path / "match.csv")
    assert (one["first"], one["second"]) == ("tracker", "hold")
    assert len(rows_of(tmp_path / "scripted.csv")) == 3
    assert float(rows_of(tmp_path / "speed.csv")[0]["steps per s of a core"]) > 0
    with pytest.raises(ConfigError, match=r"player='trakcer' is unknown.*'tracker'"):
        orbital.player("trakcer")


@pytest.mark.parametrize("network", [Network(core="gru"), Network(previous_action_reward=True)])
def test_policies_that_remember_are_refused(orbital, monkeypatch, network):
    monkeypatch.setattr(hr, "load", lambda folder: SimpleNamespace(network=network))
    with pytest.raises(ConfigError, match=r"run_dir='runs/x' must be .* the present alone"):
        orbital.policy_player("runs/x")


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_policy_plays_its_likeliest_actions_or_draws_them(runs, monkeypatch, deterministic):
    def predict(obs, deterministic, action_mask):
        return np.full(len(obs), int(deterministic)) * action_mask[:, 1], None

    policy = SimpleNamespace(network=Network(), predict=predict)
    monkeypatch.setattr(hr, "load", lambda folder: policy)
    act = runs.policy_player("runs/x", deterministic)
    actions = act(np.zeros((2, 5)), np.array([[1, 1], [1, 0]]))
    assert actions.tolist() == [int(deterministic), 0]


def test_a_film_shows_a_game_of_any_two(orbital, tmp_path, monkeypatch):
    short = functools.partial(orbital.OrbitalDominanceVectorEnv, horizon=3)
    monkeypatch.setattr(orbital, "OrbitalDominanceVectorEnv", short)
    args = orbital.Args(studies="film", first="pursuit", second="evader", output=tmp_path)
    orbital.main(args)
    (row,) = rows_of(tmp_path / "film.csv")
    assert (row["first"], row["second"]) == ("pursuit", "evader")
    frames = imageio.mimread(row["film"])
    assert len(frames) == 4
    assert frames[0].shape == (400, 800, 3)

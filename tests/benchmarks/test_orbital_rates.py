"""orbital_rates.py: all cases are the same run except for the players."""

from __future__ import annotations

import csv
import importlib
from dataclasses import replace

import numpy as np
import pytest

from headrace.envs.make import make_vec
from headrace.games.league_folder import snapshots
from headrace.games.vector import agents_of
from headrace_ssa import OrbitalDominanceVectorEnv

SMALL = {
    "envs_per_actor": 8,
    "fragment_length": 4,
    "batch_size": 32,
    "total_steps": 64,
    "transport": "serial",
}


@pytest.fixture
def rates():
    return importlib.import_module("orbital_rates")


def test_every_case_trains_as_many_columns_and_the_league_has_its_snapshots(rates, tmp_path):
    begins = rates.first_snapshots(replace(rates.config_of("league", tmp_path), **SMALL), 3)
    rates.trained(begins, 60.0)
    assert len(snapshots(tmp_path / "league")) == 3
    for case in rates.CASES:
        config = replace(rates.config_of(case, tmp_path / case), **SMALL)
        if config.league is not None:
            config = replace(config, league=str(tmp_path / "league"))
        assert rates.trained(config, 60.0) > 0
        assert config.batch_size == 32, case


def test_single_columns_are_the_games_own(rates):
    """The same observations as separate environments instead of two seats of a game."""
    games, single = OrbitalDominanceVectorEnv(4), make_vec(rates.Single, 4)
    assert not agents_of(single)
    np.testing.assert_array_equal(games.reset(seed=1)[0], single.reset(seed=1)[0])
    told = [envs.step(np.array([1, 2, 0, 14]))[:2] for envs in (games, single)]
    for one, other in zip(*told, strict=True):
        np.testing.assert_array_equal(one, other)


def test_blue_plays_whole_games_in_which_red_holds(rates):
    games, blue = OrbitalDominanceVectorEnv(6), make_vec(rates.Blue, 3)
    obs, infos = games.reset(seed=1)
    seen, shown = blue.reset(seed=1)
    for _ in range(4):
        np.testing.assert_array_equal(obs[::2], seen)
        np.testing.assert_array_equal(infos["action_mask"][::2], shown["action_mask"])
        obs, reward, *_, infos = games.step(np.array([1, 0, 8, 0, 14, 0]))
        seen, got, *_, shown = blue.step(np.array([1, 8, 14]))
        np.testing.assert_array_equal(reward[::2], got)


def test_ratios_are_within_a_round(rates, monkeypatch, tmp_path, capsys):
    each = dict(
        zip(rates.CASES, ([100, 200], [50, 400], [90, 100], [80, 200], [70, 120]), strict=True)
    )
    asked = []

    class Told:
        def call(self, function, request, timeout_s):
            asked.append(request.get("case", function.__name__))
            return each[request["case"]].pop(0) if "case" in request else 0.0

    monkeypatch.setattr(rates, "Children", Told)
    rates.main(rates.Args(repeats=2, output=tmp_path))
    assert asked == ["begun", *rates.CASES, *rates.CASES]
    with (tmp_path / "orbital_rates.csv").open() as file:
        rows = {row["case"]: row for row in csv.DictReader(file)}
    assert float(rows["shared"]["times_single"]) == pytest.approx(0.7)
    assert float(rows["league"]["times_single"]) == pytest.approx(0.65)
    assert float(rows["league"]["times_blue"]) == pytest.approx(0.85)
    assert "latest:1" in capsys.readouterr().out

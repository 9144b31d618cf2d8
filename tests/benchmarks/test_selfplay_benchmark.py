"""The benchmark of self-play: training, measuring and plotting."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytest.importorskip("pyspiel")  # it has no wheels for Python 3.10


@pytest.fixture
def selfplay():
    return importlib.import_module("selfplay")


def test_every_game_is_trained_in_its_own_units_by_every_algorithm(selfplay):
    for own in selfplay.SETTINGS.values():
        for name, kind in selfplay.ALGORITHMS.items():
            algo, *_ = selfplay.chosen(name, own)
            assert (type(algo), kind.__name__.lower()) == (kind, name)
            assert (algo.gamma, algo.lam, algo.normalize_advantage) == (1.0, own.lam, False)
            assert algo.entropy_coef == own.entropy > 0
            assert getattr(algo, "clip", own.clip) == own.clip


def test_algorithms_step_as_often_for_as_many_samples(selfplay):
    own = selfplay.SETTINGS["kuhn_poker"]
    for name in selfplay.ALGORITHMS:
        algo, columns, rows = selfplay.chosen(name, own)
        of_a_step = own.columns * own.fragment / (own.epochs * own.minibatches)
        assert columns * rows / algo.steps_per_batch == of_a_step


def test_what_is_set_is_the_games_or_the_algorithms(selfplay):
    words = ["steps=5", "hidden=[8]", "lam=0.5", "max_lag=3", "clip=0.1"]
    own = selfplay.Settings().changed(words)
    assert (own.steps, own.hidden, own.entropy) == (5, [8], selfplay.Settings().entropy)
    algo, *_ = selfplay.chosen("appo", own)
    assert (algo.lam, algo.max_lag, algo.clip) == (0.5, 3, 0.1)


@pytest.mark.parametrize("game", ["kuhn_poker", "tic_tac_toe"])
def test_a_run_is_a_line_of_figures_and_a_picture(selfplay, tmp_path, monkeypatch, game):
    small = selfplay.Settings(256, minibatches=1, columns=16, fragment=8, hidden=(8,))
    monkeypatch.setitem(selfplay.SETTINGS, game, small)
    monkeypatch.setattr(selfplay, "GAMES_PLAYED", 4)
    command = ["selfplay.py", game, "--methods", "latest", "--seeds", "2", "--snapshots", "3"]
    monkeypatch.setattr(sys, "argv", [*command, "--output", str(tmp_path)])
    selfplay.main()
    one, two = map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())
    assert [line["seed"] for line in (one, two)] == [10, 11]
    steps = [step for step, _ in one["curve"]]
    assert steps[0] == 0 < steps[1] <= 256
    if game == "kuhn_poker":
        assert all(0 < line[name] < 4 for line in (one, two) for name in ("latest", "average"))
        assert one["latest"] != two["latest"]
    else:
        for seat in (0, 1):
            found = one[f"minimax_seat_{seat}"]
            assert sum(found.values()) == 4
            assert found["won"] == 0
    assert (tmp_path / f"{game}.png").read_bytes()[:4] == b"\x89PNG"

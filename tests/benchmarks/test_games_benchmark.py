"""games.py: both programs train the same game, and ratios are within a round."""

from __future__ import annotations

import csv
import importlib

import numpy as np
import pytest


def test_it_measures_loops_and_headrace_in_turn(monkeypatch, tmp_path, capsys):
    games = importlib.import_module("games")
    rates = {
        "loop": iter([100.0, 200.0, 100.0, 400.0]),
        "headrace": iter([600.0, 1000.0, 8000.0, 700.0, 1200.0, 9000.0]),
        "game": iter([150.0, 250.0]),
    }

    class Told:
        def call(self, function, request, timeout_s):
            assert function is games.measured
            assert request["args"]["num_steps"] == 8
            return next(rates[request["who"]])

    monkeypatch.setattr(games, "Children", Told)
    games.main(games.Args(vectorised="worlds:Matching", num_steps=8, repeats=2, output=tmp_path))
    with (tmp_path / "games.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["times_one_game"]) for row in rows] == [1.0, 3.0, 6.5, 11.0, 2.0, 85.0]
    assert [float(row["times_many_games"]) for row in rows][2:4] == pytest.approx([2.375, 4.0])
    assert "headrace, 1 actor" in capsys.readouterr().out


@pytest.mark.slow
def test_the_loop_learns_a_game_that_headrace_learns():
    games = importlib.import_module("games")
    loop = games.Loop("worlds:Matching", 8, 16)

    def matched() -> float:
        import torch

        obs = torch.eye(3)
        with torch.no_grad():
            return float((loop._agent.policy(obs).argmax(-1) == torch.arange(3)).float().mean())

    loop._optimizer.param_groups[0]["lr"] = 1e-2
    for _ in range(12):
        assert loop.update() == 8 * 2 * 16
    assert matched() == 1.0


def test_the_loop_obeys_masks_and_the_game_alone_does(monkeypatch):
    """Each agent may take only one action, different from the others'."""
    games = importlib.import_module("games")
    loop = games.Loop("headrace_ssa.dominance:parallel_env", 2, 4)
    acted = []

    def step(self, actions):
        acted.append(actions.tolist())
        return np.zeros(4, np.float32), np.zeros(4, np.float32)

    for _, infos in loop._shown:
        for i, info in enumerate(infos.values()):
            info["action_mask"] = np.eye(len(info["action_mask"]), dtype=np.int8)[3 + i]
    monkeypatch.setattr(games.Loop, "_step", step)
    assert loop.update() == 16
    assert loop.seconds_alone(np.random.default_rng(0)) > 0
    assert acted == [[3, 4, 3, 4]] * 5

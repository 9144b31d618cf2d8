"""cooperative.py: returns in a publication's units, and runs that are done once."""

from __future__ import annotations

import dataclasses
import importlib

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError

SMALL = hr.Config(
    env="worlds:Matching",
    algo=hr.PPO(epochs=1, minibatches=1),
    total_steps=64,
    num_actors=1,
    envs_per_actor=8,
    fragment_length=9,
    transport="serial",
)


@pytest.fixture
def cooperative():
    return importlib.import_module("cooperative")


def test_spread_is_counted_as_the_paper_counts_it(cooperative):
    rng = np.random.default_rng(0)
    distances = rng.uniform(0, 3, (25, 1, 40))  # steps, agents, games
    collisions = rng.integers(0, 3, (25, 3, 40))
    pettingzoo = (-0.5 * distances - 0.5 * collisions).sum(0)
    paper = (-distances - collisions - 1).sum((0, 1))  # with itself, too, in the paper's version
    found = cooperative.in_games(cooperative.GAMES["spread"], pettingzoo)
    assert found["mean"] == pytest.approx(paper.mean())
    assert found["se"] == pytest.approx(paper.std(ddof=1) / np.sqrt(40))


def test_three_agents_share_out_every_run(cooperative):
    for game in cooperative.GAMES.values():
        assert game.config.envs_per_actor % 3 == 0
        assert game.config.policies == "shared"


def test_random_play_is_counted_over_a_game_s_first_episodes(cooperative):
    game = cooperative.Game(SMALL, 400, True, {}, factor=3.0, plus=-1.0)
    found = cooperative.random_play(game, 400)
    assert found["mean"] == pytest.approx(3 * 8 / 3 - 1, abs=5 * found["se"])
    assert (
        0.05 < found["se"] < 0.3
    )  # of means over two agents: 3 * sqrt(8 * 2 / 9 / 2 / 400) = 0.14
    assert found["step_us"] > 0


def test_a_run_is_trained_once_and_told_beside_the_published(
    cooperative, monkeypatch, tmp_path, capsys
):
    game = cooperative.Game(SMALL, 8, True, {"somebody's": "-1.5"}, factor=3.0, plus=-100.0)
    monkeypatch.setattr(cooperative, "GAMES", {"matching": game})
    args = cooperative.Args(games=("matching",), seeds=(0, 1), output=tmp_path)
    cooperative.main(args)
    _, _, first = capsys.readouterr().out.partition(", 64 steps, 8 games;")
    rows = {line.split("│")[1].strip(): line for line in first.splitlines() if "│" in line}
    assert list(rows) == ["random", "seed 0", "seed 1", "somebody's"]
    assert "-1.5" in rows["somebody's"]
    assert all(-100 <= float(rows[name].split("│")[2].split()[0]) <= -76 for name in list(rows)[:3])
    assert rows["seed 0"].count("-") > len(cooperative.SHARES)  # its curve is in the same units

    monkeypatch.setattr(cooperative, "train_to_end", lambda *_, **__: pytest.fail("trained again"))
    cooperative.main(args)
    _, _, again = capsys.readouterr().out.partition(", 64 steps, 8 games;")
    assert [line for line in again.splitlines() if "seed" in line] == [
        line for line in first.splitlines() if "seed" in line
    ]
    with pytest.raises(ConfigError, match=r"total_steps=64 instead of 128"):
        cooperative.main(dataclasses.replace(args, total_steps=128))


def test_an_unknown_game_is_refused(cooperative):
    with pytest.raises(ConfigError, match="spread"):
        cooperative.Args(games=("spred",))

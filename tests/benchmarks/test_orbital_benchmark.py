"""The benchmark of OrbitalDominance with few games."""

from __future__ import annotations

import contextlib
import csv
import dataclasses
import functools
import importlib
from types import SimpleNamespace

import imageio.v2 as imageio
import numpy as np
import pytest

import headrace as hr
from headrace import Network
from headrace.errors import ConfigError
from headrace.recipes import recipe
from headrace_ssa import OrbitalDominanceVectorEnv
from headrace_ssa.dominance import rules


@pytest.fixture
def runs():
    return importlib.import_module("orbital_runs")


@pytest.fixture
def orbital(runs):
    return importlib.import_module("orbital")


@pytest.fixture
def trains(runs, monkeypatch):
    """Replaces the command by a small recipe; returns the flags of each run."""
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
    orbital.main(dataclasses.replace(args, first_seed=207, seeds=2, pairs=2))
    assert [flags["seed"] for flags in asked] == [100, 207, 208]


@pytest.mark.full
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
    with pytest.raises(ConfigError, match=r"run_dir='runs/x' must be .* no memory"):
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


@pytest.mark.full
def test_a_video_shows_a_game_of_any_two(orbital, tmp_path, monkeypatch):
    short = functools.partial(orbital.OrbitalDominanceVectorEnv, horizon=3)
    monkeypatch.setattr(orbital, "OrbitalDominanceVectorEnv", short)
    args = orbital.Args(studies="video", first="pursuit", second="evader", output=tmp_path)
    orbital.main(args)
    (row,) = rows_of(tmp_path / "video.csv")
    assert (row["first"], row["second"]) == ("pursuit", "evader")
    for video in (tmp_path / "video.gif", tmp_path / "video.mp4"):
        frames = imageio.mimread(video)
        assert len(frames) == 4
        assert frames[0].shape[:2] == (400, 800)


# -- strategies ------------------------------------------------------------------------------


@pytest.fixture
def study(runs):
    return importlib.import_module("orbital_strategies")


@pytest.mark.slow
def test_what_snapshots_and_scripts_do_is_counted_over_training(
    orbital, study, trains, tmp_path, monkeypatch
):
    drawn = []
    monkeypatch.setattr(study, "draw", lambda rows, path: drawn.extend(rows))
    few = {name: study.PLAYERS[name] for name in ("hold", "tracker")}
    monkeypatch.setattr(study, "PLAYERS", few)
    monkeypatch.setattr(study, "OPPONENTS", (study.ITSELF, "hold", "tracker"))
    orbital.main(orbital.Args(studies="strategies", seeds=1, pairs=2, output=tmp_path))
    rows = rows_of(tmp_path / "strategies.csv")
    (*runs, final), scripts = rows[:-6], rows[-6:]
    assert final["opponent"] == "tracker"
    assert [(row["run"], row["opponent"]) for row in scripts[:3]] == [
        ("hold", "itself"), ("hold", "hold"), ("hold", "tracker")
    ]  # fmt: skip
    stages = [int(row["steps"]) for row in runs[::2]]
    assert (len(stages) >= 3, stages[0], stages[-1] >= 200) == (True, 0, True)
    assert stages == sorted(stages)
    met = [("appo-100", "itself"), ("appo-100", "hold")] * len(stages)
    assert [(row["run"], row["opponent"]) for row in runs] == met
    assert len(drawn) == len(met) + 1  # the runs'
    assert {float(row["return"]) for row in runs[::2]} == {0.0}
    assert float(scripts[2]["return"]) < 0.0 == float(scripts[2]["pointings"])
    assert float(scripts[4]["return"]) > 0.0 < float(scripts[4]["pointings"])


def test_each_thing_that_is_done_is_told_from_the_others(study):
    """Return a game in which the first player is blue, and the same one in which it is red."""
    actions = rules.Actions(2)
    own = iter([actions.first_point + 2, 1, 4, 5, 7, 11, 12, actions.first_jam + 1])
    counted = study.done(
        lambda obs, mask: np.full(len(obs), next(own, 0)), study.PLAYERS["hold"](), 2
    )
    whole = [f"asset burns {way}" for way in ("across", "along", "at first")]
    whole += [f"inspector burns {way}" for way in ("up", "along", "across")]
    assert [counted[name] for name in whole] == [1, 2, 3, 1, 0, 2]
    assert (counted["pointings"], counted["jams"], counted["collisions"]) == (1, 1, 0)
    assert counted["sees asset"] > counted["sees inspector"] == 0
    assert counted["sees asset"] <= counted["custody"]


def moment(study, envs, actions, infos):
    return study.match.Moment(envs.scene, actions, np.zeros(4), infos, np.ones(4, bool), None)


def test_who_is_near_whom_is_told_and_whether_the_sun_shines(study):
    envs = orbital_games()
    state = envs.scene.state
    state[..., :3] = 0.0
    state[0, 0, :, 1] = 0.0, 11_500.0  # blue's asset, blue's inspector
    state[0, 1, :, 1] = 10_000.0, 30_000.0  # red's
    state[1] = state[0]
    envs.scene.station[..., :3] = state[:, :, 0, :3]
    envs.scene.station[1, 1, 2] = 5_001.0
    envs.scene.sun[:] = [[0.0, 0.0], [0.0, np.pi]]  # overhead, and behind the Earth
    envs.scene.time[:] = 0
    jam = rules.Actions(2).first_jam
    actions = np.array([jam + 1, jam, jam + 1, jam + 1])
    infos = {"custody": np.zeros(4), "inspections": np.zeros(4), "collided": np.zeros(4),
             "burnt": np.zeros(4, bool), "jammed": np.ones(4, bool)}  # fmt: skip
    each = study.counts(moment(study, envs, actions, infos))
    assert each["assets apart, km"].tolist() == [10.0] * 4
    assert each["inspector away, km"].tolist() == [1.5, 30.0] * 2
    assert each["near, lit"].tolist() == [1, 0, 0, 0]
    assert each["near, dark"].tolist() == [0, 0, 1, 0]
    assert each["off station"].tolist() == [0, 0, 0, 1]
    assert each["off station, km"].tolist() == pytest.approx([0, 0, 0, 5.001])
    assert each["jams in reach"].tolist() == [1, 1, 0, 0]  # no side sees anything in the dark
    assert each["blinded"].tolist() == [0, 0, 0, 0]
    actions[1] = jam + 1  # players without neighbours
    envs.scene.sun[0, 1] = -0.5 * np.pi  # ahead on the track, where red's asset is from blue's
    each = study.counts(moment(study, envs, actions, infos))
    assert each["jams in reach"].tolist() == [1, 0, 0, 0]
    assert each["blinded"].tolist() == [0, 0, 0, 0]  # blue's inspector looks back
    state[0, 0, 1, 1] = 9_000.0
    assert study.counts(moment(study, envs, actions, infos))["blinded"].tolist() == [1, 0, 0, 0]


def orbital_games():
    envs = OrbitalDominanceVectorEnv(4)
    envs.reset(seed=0)
    return envs


@pytest.mark.draws
@pytest.mark.full
def test_strategies_are_drawn_over_steps(study, tmp_path):
    rows = [
        {"run": run, "steps": steps, "opponent": name, **dict.fromkeys(study.PANELS, steps)}
        for run in ("a", "b")
        for steps in (0, 10)
        for name in study.OPPONENTS
    ]
    study.draw(rows, tmp_path / "strategies.png")
    assert imageio.imread(tmp_path / "strategies.png").shape[:2] == (768, 1320)

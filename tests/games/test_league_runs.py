"""Runs that play a league: files, resuming, and rejected settings."""

from __future__ import annotations

import itertools
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from worlds.pennies import Pennies

import headrace as hr
from headrace.api import resume_config
from headrace.errors import CheckpointError, ConfigError
from headrace.games.league_folder import Games, LeagueView, snapshots, standings
from headrace.rundir import league_identity, league_writer

SIZES: dict[str, Any] = {"num_actors": 2, "envs_per_actor": 6, "fragment_length": 8}
QUICK: dict[str, Any] = {
    **SIZES, "network": hr.Network(hidden=(8,)), "eval_episodes": 0, "transport": "serial",
    "snapshot_every_steps": 150, "log_interval_s": 60.0,
}  # fmt: skip
PPO = hr.PPO(epochs=1, minibatches=2, lr_schedule="constant")


def train(path: Path, **settings: Any) -> Any:
    settings = {"opponents": "latest:0.5,pfsp:0.3,naive:0.2", **QUICK, **settings}
    return hr.train(Pennies, settings.pop("algo", PPO), run_dir=str(path), **settings)


def weights(path: Path) -> dict[str, torch.Tensor]:
    return load_file(path / "policy.safetensors")


def test_a_run_leaves_snapshots_standings_and_games(tmp_path: Path) -> None:
    policy = train(tmp_path / "x", total_steps=1000, zero_sum=True)
    folder = tmp_path / "x" / "league"
    found = snapshots(folder)
    steps = [one.step for one in found]
    assert steps[0] == 0
    assert len(found) >= 5
    assert all(150 <= b - a < 400 for a, b in itertools.pairwise(steps))
    assert {one.run for one in found} == {"x"}
    about = json.loads((found[2].path / "config.json").read_text())["snapshot"]
    assert about == {"run": "x", "step": steps[2], "parents": [found[1].name]}
    frozen = hr.load(found[-1].path)
    assert frozen.predict(np.zeros(4, np.float32))[0] in (0, 1)
    before, after = (weights(found[i].path)["policy_head.weight"] for i in (0, -1))
    assert not torch.equal(before, after)
    assert policy.action_space.n == 2
    games = league_writer.new_games(folder, "x", {})
    assert set(games) <= {one.name for one in found}
    assert sum(count for count, _ in games.values()) >= 64
    told = [json.loads(x) for x in (tmp_path / "x/metrics.jsonl").read_text().splitlines()]
    assert told[-1]["league/snapshots"] == len(found)


def test_a_resumed_run_goes_on_exactly_with_the_same_league(tmp_path: Path) -> None:
    """Runs resume bit for bit, although later games and snapshots are lost with a crash."""
    how: dict[str, Any] = {"deterministic": True, "checkpoint_interval": 600, "seed": 5}
    train(tmp_path / "whole", total_steps=2700, **how)
    train(tmp_path / "cut" / "whole", total_steps=2350, **how)
    cut = tmp_path / "cut" / "whole"
    kept = sorted(cut.glob("checkpoints/step_*"), key=lambda p: int(p.name[5:]))
    saved = torch.load(kept[-2] / "trainer.pt", weights_only=True)["league"]
    shutil.rmtree(kept[-1])
    (cut / "checkpoints" / "latest").write_text(kept[-2].name + "\n")
    files = {f.name: f.stat().st_size for f in (cut / "league/runs/whole").glob("games-*")}
    assert any(size > saved["offsets"].get(name, 0) for name, size in files.items())
    extra = cut / "league" / "snapshots" / "whole-99999"
    shutil.copytree(snapshots(cut / "league")[0].path, extra)
    hr.resume(str(cut), total_steps=2700)
    assert not extra.exists()
    one, other = (snapshots(tmp_path / name / "league") for name in ("whole", "cut/whole"))
    assert [x.name for x in one] == [x.name for x in other]
    for a, b in zip(one, other, strict=True):
        for name, value in weights(a.path).items():
            assert torch.equal(value, weights(b.path)[name]), (a.name, name)
    last = [sorted((p / "checkpoints").glob("step_*"), key=lambda p: int(p.name[5:]))[-1]
            for p in (tmp_path / "whole", cut)]  # fmt: skip
    assert last[0].name == last[1].name
    for name, value in weights(last[0]).items():
        assert torch.equal(value, weights(last[1])[name])
    states = [torch.load(p / "trainer.pt", weights_only=True)["league"] for p in last]
    assert states[0]["standings"] == states[1]["standings"]


def test_two_runs_share_a_league(tmp_path: Path) -> None:
    shared = str(tmp_path / "shared")
    train(tmp_path / "a" / "x", league=shared, total_steps=500)
    train(tmp_path / "b" / "x", league=shared, total_steps=500, opponents="uniform")
    assert {one.run for one in snapshots(Path(shared))} == {"x", "x-2"}
    opponents = set(league_writer.new_games(Path(shared), "x-2", {}))
    assert any(name.startswith("x-2-") for name in opponents)
    assert any(name.rpartition("-")[0] == "x" for name in opponents)


def games_of(league: Path, run: str) -> int:
    return sum(count for count, _ in league_writer.new_games(league, run, {}).values())


def test_a_copy_of_a_run_plays_as_another_member(tmp_path: Path) -> None:
    league, a, b, moved = (tmp_path / name for name in ("league", "a", "b", "moved"))
    train(a, league=str(league), total_steps=500)
    shutil.copytree(a, b, symlinks=True)
    hr.resume(str(a), total_steps=1000)
    games, said = games_of(league, "a"), list[str]()
    for steps in (1000, 1500):  # the first resume leaves a checkpoint with its new name
        trainer = hr.Trainer(resume_config(b, total_steps=steps), notify=said.append)
        with trainer:
            for _ in trainer:
                pass
    assert {path.name for path in (league / "runs").iterdir()} == {"a", "b"}
    assert games_of(league, "a") == games > 0  # none was truncated
    assert games_of(league, "b") > 0
    assert [line for line in said if "is a copy of the run a, so it plays as b" in line] == said[:1]
    a.rename(moved)
    hr.resume(str(moved), total_steps=1500)
    assert {path.name for path in (league / "runs").iterdir()} == {"a", "b"}
    assert games_of(league, "a") > games


def test_a_copy_that_died_before_its_first_checkpoint_keeps_its_name(tmp_path: Path) -> None:
    league, a, b = (tmp_path / name for name in ("league", "a", "b"))
    train(a, league=str(league), total_steps=300)
    shutil.copytree(a, b, symlinks=True)
    for _ in range(2):
        hr.Trainer(resume_config(b, total_steps=900), notify=lambda line: None).close()
    assert {path.name for path in (league / "runs").iterdir()} == {"a", "b"}


@pytest.mark.parametrize(
    ("changes", "copied"),
    [
        ({}, False),
        ({"host": "other"}, False),  # another node, the same shared file system
        ({"host": "other", "inode": 1}, True),
        ({"inode": 1}, False),  # restored from a backup at its path
        ({"inode": 1, "path": "/gone"}, False),  # moved to another file system
        ({"inode": 1, "path": "/"}, True),
        ({"device": -1, "path": "/"}, True),
    ],
)
def test_a_copy_is_distinguished_from_a_moved_directory(
    tmp_path: Path, changes: dict[str, Any], copied: bool
) -> None:
    (tmp_path / "runs" / "a").mkdir(parents=True)
    assert not league_identity.is_copy(tmp_path, "a", tmp_path)
    league_identity.sign(tmp_path, "a", tmp_path)
    owner = tmp_path / "runs" / "a" / league_identity.OWNER
    owner.write_text(json.dumps(json.loads(owner.read_text()) | changes))
    assert league_identity.is_copy(tmp_path, "a", tmp_path) is copied


@pytest.mark.slow
def test_an_exploiter_learns_against_one_policy_and_beats_it(tmp_path: Path) -> None:
    """A frozen policy of random weights hardly varies its actions, so one can train against it."""
    train(tmp_path / "x", total_steps=100)
    target = snapshots(tmp_path / "x" / "league")[0]
    policy = hr.load(target.path)
    with torch.no_grad():
        policy.policy_head.bias[:] = torch.tensor([0.0, 3.0])
    biased = tmp_path / "biased"
    from headrace.rundir import checkpoint, checkpoint_writer

    values = checkpoint.read_config(target.path)
    biased.mkdir()
    checkpoint_writer.save_policy(biased, values, policy, 0)
    results: list[Any] = []
    exploited_opponent = str(biased / "checkpoints/best")
    train(tmp_path / "y", total_steps=6000, opponents=None, exploit=exploited_opponent,
          snapshot_every_steps=None, algo=hr.PPO(learning_rate=0.02, epochs=2, minibatches=2),
          callbacks=[results.append])  # fmt: skip
    assert results[-1].episode_return > 1.5  # of 3 rounds, where a fair coin gets 0
    assert not (tmp_path / "y" / "league").exists()


class Coins(Pennies):
    """Another game with the same spaces."""


@pytest.mark.parametrize("other", [{"env_kwargs": {"rounds": 2}}, {"env": Coins}])
def test_who_is_exploited_plays_the_same_game(tmp_path: Path, other: dict[str, Any]) -> None:
    """Also if the spaces are the same."""
    train(tmp_path / "x", total_steps=100)
    known = {"env": Pennies, "exploit": str(tmp_path / "x"), "run_dir": str(tmp_path / "y")}
    config = hr.Config(**{**known, **SIZES, **other})
    with pytest.raises(ConfigError, match="plays another game: its env"):
        hr.Trainer(config)


class Paired(Pennies):
    """Has an argument that changes in JSON."""

    def __init__(self, num_envs: int = 1, pair: Any = (), **given: Any) -> None:
        super().__init__(num_envs, **given)


def test_who_is_exploited_may_have_been_given_a_tuple(tmp_path: Path) -> None:
    game = {"env": Paired, "env_kwargs": {"pair": (1, 2)}, "transport": "serial"}
    hr.train(
        hr.Config(**{**SIZES, **game}, run_dir=str(tmp_path / "x"), total_steps=50, eval_episodes=0)
    )
    config = hr.Config(
        **{**SIZES, **game}, exploit=str(tmp_path / "x"), run_dir=str(tmp_path / "y")
    )
    with hr.Trainer(config):
        pass


def test_paths_to_opponents_hold_in_other_folders(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exploiter's opponent stays fixed, although the other run continues."""
    from headrace.rundir import checkpoint, exploited_opponent
    from headrace.studies.league.command import folder_of

    for name in ("one", "other"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "one")
    train(Path("x"), league="shared", total_steps=100)
    alone = {"opponents": None, "snapshot_every_steps": None}
    train(Path("y"), exploit="x", total_steps=100, **alone)
    rated = snapshots(tmp_path / "one/shared")[0].name
    train(Path("z"), exploit=rated, league="shared", total_steps=100, **alone)
    monkeypatch.chdir(tmp_path / "other")
    played = weights(checkpoint.find("../one/x"))
    hr.resume("../one/x", total_steps=400)
    assert not list((tmp_path / "other").iterdir())
    assert folder_of(Path("../one/x")) == tmp_path / "one/shared"
    later = weights(checkpoint.find("../one/x"))
    assert any(not torch.equal(played[name], later[name]) for name in played)
    hr.resume("../one/y", total_steps=200)
    config = hr.Config(Pennies, PPO, exploit=str(tmp_path / "one/x"))
    kept = exploited_opponent.of(config, tmp_path / "one/y")
    assert kept is not None
    assert kept.path.parent == tmp_path / "one/y/checkpoints"
    for name, value in weights(kept.path).items():
        assert torch.equal(value, played[name])
    shutil.rmtree(tmp_path / "one/x")
    hr.resume("../one/y", total_steps=300)
    with pytest.raises(ConfigError, match=r"exploit='.*other/x' must be '.*one/x'"):
        hr.resume("../one/y", total_steps=400, exploit="x")
    shutil.rmtree(tmp_path / "one/shared")
    with pytest.raises(
        CheckpointError, match=r"one/shared' is missing, but the run z resumes in it"
    ):
        hr.resume("../one/z", total_steps=300)


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_actors_in_processes_play_the_league_too(tmp_path: Path, transport: str) -> None:
    train(tmp_path / "x", total_steps=600, transport=transport, algo=hr.IMPALA(), num_actors=1)
    assert league_writer.new_games(tmp_path / "x" / "league", "x", {})


@pytest.mark.parametrize("opponents", ["uniform", "latest:0.5,pfsp:0.5"])
def test_columns_of_opponents_need_no_whole_games(tmp_path: Path, opponents: str) -> None:
    """Return the columns that the error for a mixture of games names as nearest."""
    how: dict[str, Any] = {"algo": hr.A2C(), "opponents": opponents, "total_steps": 100}
    if opponents != "uniform":
        with pytest.raises(ConfigError, match=r"envs_per_actor=2 must be .*\(nearest: 3\)"):
            train(tmp_path / "x", envs_per_actor=2, **how)
    train(tmp_path / "x", envs_per_actor=3, **how)
    assert json.loads((tmp_path / "x/summary.json").read_text())["env_steps"] >= 100
    with pytest.raises(
        ConfigError, match=r"multiple of 2, the number of seats of a game.*nearest: 2"
    ):
        train(tmp_path / "y", envs_per_actor=3, **how | {"opponents": "latest"})


def test_a_win_rate_takes_a_snapshot_early(tmp_path: Path) -> None:
    from headrace.rundir.league_run import LeagueRun

    config = hr.Config(Pennies, PPO, opponents="pfsp", snapshot_win_rate=0.7, total_steps=10**6)
    member = LeagueRun.__new__(LeagueRun)
    member._config, member._latest, member._newest = config, 0, "0"

    class At:
        env_steps = 1000

    member._progress = At()  # type: ignore[assignment]
    from headrace.games.win_rates import WinRates

    for rates, due in (((80, 75), True), ((80, 60), False), ((), False)):
        member._standings = WinRates()
        member._standings.add({str(i): (100, float(rate)) for i, rate in enumerate(rates)})
        assert member._is_due() == due
    member._standings.add({"0": (100, 80.0), "1": (100, 80.0)})
    assert member._is_due()
    member._latest, member._newest = 500, "2"  # the snapshot that was just taken has no games yet
    assert not member._is_due()
    member._standings.add({"2": (99, 99.0)})
    assert not member._is_due()
    member._standings.add({"2": (1, 1.0)})
    assert member._is_due()
    At.env_steps = 500 + config.snapshot_steps
    member._standings = WinRates()
    assert member._is_due()


def test_games_of_several_writers_are_all_counted(tmp_path: Path) -> None:
    league_writer.create(tmp_path, {"env": "x"})
    assert league_writer.join(tmp_path, "r") == "r"
    assert league_writer.join(tmp_path, "r") == "r-2"
    writers = [Games(tmp_path, "r", str(i)) for i in range(3)]
    for i in range(16 * 4):
        for writer in writers:
            writer.add(f"s-{i % 2}", 1.0)
    offsets: dict[str, int] = {}
    assert league_writer.new_games(tmp_path, "r", offsets) == {"s-0": (96, 96.0), "s-1": (96, 96.0)}
    assert league_writer.new_games(tmp_path, "r", offsets) == {}
    with writers[0].path.open("a") as file:
        file.write('{"s-0": [64')  # a line that is being written
    assert league_writer.new_games(tmp_path, "r", offsets) == {}
    with writers[0].path.open("a") as file:
        file.write(", 32.0]}\n")
    assert league_writer.new_games(tmp_path, "r", offsets) == {"s-0": (64, 32.0)}


def test_a_snapshot_that_is_being_written_is_none(tmp_path: Path) -> None:
    league_writer.create(tmp_path, {"env": "x"})
    (tmp_path / "snapshots" / ".r-0.tmp").mkdir()
    view = LeagueView(tmp_path, "r")
    view.refresh()
    assert view.snapshots == []

    def fails(file: Any) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match="No space left"):
        league_writer.add(tmp_path, "r", 7, {"policy.safetensors": fails})
    assert [p.name for p in (tmp_path / "snapshots").iterdir()] == [".r-0.tmp"]
    one = league_writer.add(tmp_path, "r", 7, {"policy.safetensors": lambda file: file.write(b"x")})
    run = "r" if (tmp_path / "runs/r").exists() else league_writer.join(tmp_path, "r")
    league_writer.write_standings(tmp_path, run, {one.name: [10.0, 9.0, 10]})
    view.refresh()
    assert [x.name for x in view.snapshots] == ["r-7"]
    assert view.standings.win_rate("r-7") == 0.9
    assert standings(tmp_path, "nobody").win_rate("r-7") == 0.5


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"opponents": "latest:0.5,pfps:0.5"}, ["pfps", "pfsp"]),
        ({"opponents": None, "league": "x"}, ["league='x'", "opponents"]),
        ({"exploit": "x"}, ["opponents", "exploit"]),
        ({"opponents": None, "exploit": "nowhere", "snapshot_every_steps": None}, ["nowhere"]),
        ({"snapshot_win_rate": 1.5}, ["snapshot_win_rate=1.5"]),
        ({"envs_per_actor": 2}, ["envs_per_actor=2", "at least 3", "nearest: 3"]),
    ],
)
def test_bad_input_is_one_sentence(
    tmp_path: Path, settings: dict[str, Any], words: list[str]
) -> None:
    if settings.get("opponents", "") is None and "league" in settings:
        settings = {**settings, "snapshot_every_steps": None}
    with pytest.raises((ConfigError, CheckpointError)) as caught:
        train(tmp_path / "x", total_steps=100, **settings)
    assert "\n" not in str(caught.value)
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert not (tmp_path / "x").exists()


def test_a_league_of_another_game_is_refused(tmp_path: Path) -> None:
    train(tmp_path / "x", total_steps=100)
    for other in ({"env_kwargs": {"rounds": 2}}, {}):
        where = tmp_path / "x" / "league" if other else tmp_path / "x"
        with pytest.raises(ConfigError) as caught:
            train(tmp_path / "y", total_steps=100, league=str(where), **other)
        word = "env kwargs" if other else "not a league"
        assert word in str(caught.value)
        assert "\n" not in str(caught.value)
    assert not (tmp_path / "y").exists()


def test_a_game_of_one_agent_has_no_opponents(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a game with several agents"):
        hr.train("CartPole-v1", PPO, opponents="pfsp", run_dir=str(tmp_path / "x"), **SIZES)

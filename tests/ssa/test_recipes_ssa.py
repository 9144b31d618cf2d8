"""The recipes of the satellite games, shortened."""

from __future__ import annotations

import contextlib
import dataclasses

import imageio.v2 as imageio
import numpy as np
import pytest
import torch

import headrace as hr
from headrace.cli import main
from headrace.errors import ConfigError
from headrace.games.league_folder import snapshots
from headrace.recipes import recipe, take_recipe
from headrace_ssa import SimpleSatelliteVectorEnv
from headrace_ssa.dominance import match, players
from headrace_ssa.simple import optimal_return


def share_of_the_optimum(policy, episodes=500, seed=1_000_000):
    """Return the mean return over the mean of each episode's optimum."""
    envs = SimpleSatelliteVectorEnv(episodes)
    obs, _ = envs.reset(seed=seed)
    best, total = optimal_return(obs[:, 6:]), np.zeros(episodes)
    for _ in range(20):
        action, _ = policy.predict(obs)
        obs, reward, terminated, *_ = envs.step(action)
        total += reward
    assert terminated.all()
    return total.mean() / best.mean()


@pytest.mark.parametrize("algorithm", ["appo", pytest.param("ppo", marks=pytest.mark.slow)])
def test_the_simple_game_is_nearly_solved_within_seconds(algorithm, tmp_path):
    config = dataclasses.replace(
        recipe("satellite", algorithm),
        total_steps=400_000,
        transport="serial",  # the same every time
        eval_episodes=0,
        run_dir=str(tmp_path / "run"),
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for _ in trainer:
            pass
    assert trainer.env_steps >= 400_000
    assert share_of_the_optimum(trainer.policy) >= 0.9


def test_only_algorithms_with_a_setting_have_one():
    assert recipe("satellite", "impala").algo_name == "impala"
    with pytest.raises(ConfigError, match="satellite has no setting for algorithm 'a3c'"):
        recipe("satellite", "a3c")


@pytest.mark.parametrize("algorithm", ["appo", "ppo", "impala"])
@pytest.mark.parametrize("name", ["conjunction", "orbital"])
def test_the_recipes_of_the_large_games_train(name, algorithm, tmp_path):
    config = dataclasses.replace(
        recipe(name, algorithm),
        total_steps=1,
        num_actors=1,
        envs_per_actor=8,
        fragment_length=16,
        batch_size=128,
        transport="serial",
        eval_episodes=0,
        run_dir=str(tmp_path / "run"),
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        results = list(trainer)
    assert results[-1].env_steps == 128
    assert results[-1].entropy > 1.0  # of the actions that the mask allows


def shortened(config, run_dir, **settings):
    """Shorten to few columns, games of 20 steps and few updates."""
    return dataclasses.replace(
        config,
        env_kwargs={"horizon": 20},
        eval_env_kwargs={"horizon": 3},
        envs_per_actor=8,
        fragment_length=8,
        batch_size=64,
        total_steps=300,
        transport="serial",
        eval_episodes=0,
        run_dir=str(run_dir),
        **settings,
    )


@pytest.fixture(scope="module")
def league_run(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("runs") / "main"
    config = shortened(recipe("orbital"), run_dir, snapshot_every_steps=100)
    with contextlib.closing(hr.Trainer(config)) as trainer:
        assert list(trainer)[-1].env_steps >= 300
    return run_dir


def test_the_recipe_of_the_wargame_trains_a_league(league_run):
    whole = recipe("orbital")
    assert whole.snapshot_steps == whole.total_steps // 20
    assert len(snapshots(league_run / "league")) >= 3
    games = list((league_run / "league/runs/main").glob("games-*.jsonl"))
    assert sum(file.stat().st_size for file in games) > 0  # snapshots were met


def test_an_exploiter_of_the_wargames_league_begins_as_its_policy(league_run, tmp_path):
    found, _ = take_recipe(["--recipe", "orbital", "--exploit", "x"], "appo", None)
    whose = {"exploit": str(league_run), "init_from": str(league_run)}
    config = shortened(found, tmp_path / "exploiter", **whose)
    with contextlib.closing(hr.Trainer(config)) as trainer:
        begins = trainer.policy.policy_head.weight.clone()
        last = list(trainer)[-1]
    assert torch.equal(begins, hr.load(league_run).policy_head.weight)
    assert last.env_steps >= 300
    assert not (tmp_path / "exploiter/league").exists()


def test_a_run_of_the_wargame_is_filmed(league_run, tmp_path, capsys):
    main(["evaluate", str(league_run), "--episodes", "2", "--video", str(tmp_path)])
    assert "blue: return" in capsys.readouterr().out
    frames = imageio.mimread(tmp_path / "episode.mp4")
    assert len(frames) == 4  # of three steps
    assert frames[0].shape == (400, 800, 3)


def test_the_recipes_opponents_stay_unless_one_policy_is_to_be_exploited():
    kept, rest = take_recipe(["--recipe", "orbital", "--seed", "3"], "appo", None)
    assert kept == recipe("orbital")
    assert rest == ["--seed", "3"]
    alone, rest = take_recipe(["--recipe=orbital", "--exploit=runs/x"], "appo", None)
    assert alone == dataclasses.replace(kept, opponents=None)
    assert rest == ["--exploit=runs/x"]
    for named in (["--policies", "shared"], ["--exploit", "None"], ["--cluster=None"]):
        assert take_recipe(["--recipe", "orbital", *named], "appo", None) == (kept, named)
    assert take_recipe(["--recipe=orbital", "--policies=per-agent"], "appo", None)[0] == alone


@pytest.mark.full  # the long form of the one above, for the wargame
def test_self_play_learns_to_watch_within_seconds(tmp_path):
    """A shortened recipe with its initial learning rate beats random actions and none."""
    whole = recipe("orbital")
    config = dataclasses.replace(
        whole,
        algo=dataclasses.replace(whole.algo, lr_schedule="constant"),
        total_steps=130_000,
        fragment_length=16,
        batch_size=4096,
        transport="serial",  # the same every time
        eval_episodes=0,
        run_dir=str(tmp_path / "run"),
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for _ in trainer:
            pass
        policy = trainer.policy

    def act(obs, mask):
        return policy.predict(obs, action_mask=mask)[0]

    for make in (players.random_player, players.hold):
        result = match.play(act, make(), 30)
        assert result.in_se > 3, result.mean

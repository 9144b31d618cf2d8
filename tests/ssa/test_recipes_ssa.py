"""The recipes of the satellite games, shortened."""

from __future__ import annotations

import contextlib
import dataclasses

import numpy as np
import pytest

import headrace as hr
from headrace.errors import ConfigError
from headrace.recipes import recipe
from headrace_ssa import SimpleSatelliteVectorEnv
from headrace_ssa.dominance import match, players
from headrace_ssa.simple import optimal_return


def share_of_the_optimum(policy, episodes=500, seed=1_000_000):
    """Mean return over the mean of each episode's own best."""
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


@pytest.mark.full  # the long form of the one above, for the wargame
def test_self_play_learns_to_watch_within_seconds(tmp_path):
    """A shortened recipe, with its first learning rate, beats random actions and none at all."""
    whole = recipe("orbital")
    config = dataclasses.replace(
        whole,
        algo=dataclasses.replace(whole.algo, lr_schedule="constant"),
        total_steps=65_000,
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

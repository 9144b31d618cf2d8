"""The recipes of IMPACT's paper hold its Tables 1 and 2, through the command line."""

from __future__ import annotations

import runpy
import warnings
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import training

BOOK = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks/book/impact_tables.py"))
TABLE_1, TABLE_2, CHEETAH = (BOOK[name] for name in ("TABLE_1", "TABLE_2", "CHEETAH"))
value = BOOK["value"]  # by the paper's name
ALGORITHMS = BOOK["ALGORITHMS"]
CASES = {
    "Pong": ("impact-discrete", "ALE/Pong-v5", TABLE_1),
    "Breakout": ("impact-discrete", "Breakout", TABLE_1),
    "LunarLander": ("impact-discrete", "LunarLander-v3", TABLE_1),
    "Hopper": ("impact-continuous", "Hopper-v5", TABLE_2),
    "Humanoid": ("impact-continuous", "Humanoid-v5", TABLE_2),
    "HalfCheetah": ("impact-continuous", "HalfCheetah-v5", TABLE_2 | CHEETAH),
}


def trained(algorithm, *flags):
    """Return the settings of a command, without a warning."""
    made = []
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("error")
        patch.setattr(training, "run", lambda config, started, quiet=False: made.append(config))
        training.train(algorithm, list(flags))
    return made[0]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("case", CASES)
def test_every_row_of_the_table_is_a_setting_of_the_command(case, algorithm):
    name, env, table = CASES[case]
    config = trained(algorithm, "--recipe", name, "--env-id", env)
    column = ALGORITHMS.index(algorithm)
    assert {key: value(config, key) for key in table} == {k: x[column] for k, x in table.items()}
    assert config.env == env
    assert (config.algo.lr_schedule, config.scale_free) == ("constant", False)
    assert config.algo.noise_color == 0.0  # independent noise, as in the paper
    if algorithm == "impala":
        assert (config.algo.epochs, config.algo.minibatches, config.algo.lam) == (1, 1, 1.0)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("case", ["Pong", "Hopper", "Humanoid"])
@pytest.mark.parametrize("workers", [10, 32])
def test_other_numbers_of_workers_are_all_busy(workers, case, algorithm):
    name, env, table = CASES[case]
    config = trained(algorithm, "--recipe", name, f"--env={env}", "--num-actors", str(workers))
    assert config.num_actors == workers  # and no warning of idle actors
    steps = table["Train Batch Size"][ALGORITHMS.index(algorithm)]
    rounds = workers * config.fragment_length if algorithm == "ppo" else 1
    assert config.batch_size == -(-steps // rounds) * rounds
    if algorithm == "ppo":
        least = table["SGD Minibatch Size"][2]
        assert config.batch_size / config.algo.minibatches == pytest.approx(least, rel=0.02)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_on_atari_they_have_the_papers_network_and_images(algorithm):
    atari = trained(algorithm, "--recipe", "impact-discrete", "--env-id", "ALE/Pong-v5")
    assert atari.network.conv == "impact"
    assert (atari.env_kwargs["img_height"], atari.env_kwargs["stack_num"]) == (42, 4)
    assert (atari.engine, atari.algo.reward_transform) == ("native", "abs_one")
    lander = trained(algorithm, "--recipe", "impact-discrete")
    assert (lander.env, lander.env_kwargs) == ("LunarLander-v3", {})


def test_the_recipe_of_atari_keeps_as_many_actors_busy():
    flags = ["--env-id", "ALE/Pong-v5", "--num-actors", "64"]
    one, other = (trained("impact", "--recipe", x, *flags) for x in ("atari", "impact-discrete"))
    assert one.algo == other.algo
    assert trained("ppo", "--recipe", "atari", "--num-actors", "8").num_actors == 8


def test_other_flags_change_single_settings_of_the_recipe():
    flags = ["--recipe", "impact-continuous", "--env-id", "Hopper-v5", "--passes", "3"]
    config = trained("impact", *flags, "--num-actors", "8")
    assert (config.algo.passes, config.algo.value_coef, config.num_actors) == (3, 1.0, 8)


def test_python_names_the_environment_too():
    config = hr.recipe("impact-continuous", "impact", env="Hopper-v5", num_actors=32)
    assert (config.env, config.num_actors, config.algo.passes) == ("Hopper-v5", 32, 20)
    moved = hr.recipe("cartpole", "ppo", env="Acrobot-v1", num_actors=2)
    assert (moved.env, moved.num_actors) == ("Acrobot-v1", 2)  # it depends on neither

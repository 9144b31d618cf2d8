"""The recipe for Atari holds what the papers' tables say."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import shlex

import pytest

import headrace as hr
from headrace.cli import main, training
from headrace.cli.training import recipes_of
from headrace.envs.names import resolve
from headrace.errors import ConfigError
from headrace.recipes.atari import PROTOCOL
from tests.layers import ROOT

# Espeholt et al. (2018), Table G.1; names of the paper.
TABLE_G1 = {
    "image width": 84, "image height": 84, "grayscaling": True, "action repetitions": 4,
    "frame stacking": 4, "end of episode when life lost": True, "unroll length": 20,
    "batch size": 32, "discount": 0.99, "baseline loss scaling": 0.5, "entropy regularizer": 0.01,
    "rmsprop epsilon": 0.01, "learning rate": 0.0006, "clip global gradient norm": 40.0,
}  # fmt: skip


def test_impala_has_the_papers_settings():
    config = hr.recipe("atari", "impala")
    env, algo, steps = config.env_kwargs, config.algo, config.batch_size
    assert {
        "image width": env["img_width"],
        "image height": env["img_height"],
        "grayscaling": env["grayscale"],
        "action repetitions": env["frameskip"],
        "frame stacking": env["stack_num"],
        "end of episode when life lost": env["life_loss_info"],
        "unroll length": config.fragment_length,
        "batch size": steps / config.fragment_length,
        "discount": algo.gamma,
        "baseline loss scaling": algo.value_coef,
        "entropy regularizer": algo.entropy_coef,
        "rmsprop epsilon": pytest.approx((algo.optimizer_eps * steps) ** 2),
        "learning rate": algo.learning_rate,
        "clip global gradient norm": pytest.approx(algo.max_grad_norm * steps),
    } == TABLE_G1
    assert (algo.optimizer, algo.lr_schedule, algo.reward_transform) == (
        "rmsprop",
        "linear",
        "abs_one",
    )
    assert env["maxpool"]  # over the last 2 frames
    assert (algo.epochs, algo.minibatches, algo.lam, config.scale_free) == (1, 1, 1.0, False)
    assert config.total_steps * env["frameskip"] == 200_000_000


def test_only_appo_departs_from_the_papers_to_learn_sooner():
    shown = {name: hr.recipe("atari", name).network for name in ("impala", "ppo", "impact")}
    assert not any(network.normalize_images for network in shown.values())
    config = hr.recipe("atari", "appo")
    assert (config.network.conv, config.network.normalize_images) == ("impala_shallow", True)
    assert (config.algo.epochs, config.batch_size // config.algo.minibatches) == (2, 128)
    assert (config.algo.learning_rate, config.algo.entropy_coef) == (5e-4, 0.03)


@pytest.mark.parametrize("algorithm", ["impala", "appo", "ppo", "impact"])
def test_every_algorithm_plays_the_protocol_and_is_evaluated_on_whole_games(algorithm):
    config = hr.recipe("atari", algorithm)
    assert (config.engine, config.eval_episodes, config.eval_deterministic) == (
        "native",
        200,
        False,
    )
    different = {k for k, v in PROTOCOL.items() if config.env_kwargs[k] != v}
    assert different == ({"img_height", "img_width"} if algorithm == "impact" else set())
    played = config.evaluated_kwargs
    assert not played["life_loss_info"]
    assert not played["reward_clipping"]
    assert played["noop_max"] == 31
    assert (config.env_kwargs["num_threads"], played["num_threads"]) == (1, 0)
    assert config.algo.reward_transform == "abs_one"


def test_the_protocol_names_settings_of_ale_pys_vector_environment():
    from ale_py import AtariVectorEnv

    from headrace.envs.atari import AtariSettings

    theirs = inspect.signature(AtariVectorEnv.__init__).parameters
    assert theirs.keys() >= PROTOCOL.keys()
    for field in dataclasses.fields(AtariSettings):
        assert field.default in (theirs[field.name].default, dataclasses.MISSING), field.name


def commands():
    page = (ROOT / "docs/atari.md").read_text(encoding="utf-8")
    found = re.findall(r"^headrace train (\w+) (.*)$", page, re.MULTILINE)
    return [(algorithm, shlex.split(flags)) for algorithm, flags in found]


@pytest.mark.parametrize(("algorithm", "flags"), commands())
def test_the_commands_of_the_page_make_settings(algorithm, flags, monkeypatch):
    made = []
    monkeypatch.setattr(training, "run", lambda config, started, quiet=False: made.append(config))
    training.train(algorithm, flags)
    assert made[0].algo_name == algorithm
    assert resolve(made[0].env).id in ("ALE/Breakout-v5", "ALE/Pong-v5")
    assert made[0].eval_episodes == 200


@pytest.mark.slow
def test_a_run_is_trained_resumed_and_evaluated_from_the_command_line(tmp_path, capsys):
    sizes = ["--num-actors", "1", "--envs-per-actor", "4", "--batch-size", "80"]
    run, cut = str(tmp_path / "run"), '{"max_num_frames_per_episode":400}'
    flags = ["--recipe", "atari", "--env-id", "Breakout", *sizes, "--run-dir", run]
    flags += ["--env-kwargs", cut, "--eval-episodes", "2", "--total-steps", "160"]
    assert main(["train", "impala", *flags]) == 0
    assert "human-normalised" in capsys.readouterr().out
    assert main(["resume", run, "--total-steps", "320"]) == 0
    assert main(["evaluate", run, "--json"]) == 0
    played = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert played["lengths"] == [100, 100]
    assert not played["deterministic"]


def test_algorithms_without_settings_are_told():
    assert {name for name in ("a2c", "a3c", "ppo") if "atari" in recipes_of(name)} == {"ppo"}
    with pytest.raises(ConfigError, match="recipe atari has no setting for algorithm 'a2c'"):
        hr.recipe("atari", "a2c")


def test_arguments_on_the_command_line_change_single_ones_of_the_recipe(monkeypatch):
    made = []
    monkeypatch.setattr(training, "run", lambda config, started, quiet=False: made.append(config))
    given = json.dumps({"repeat_action_probability": 0.25, "noop_max": 0})
    flags = ["--recipe", "atari", "--env-id", "Breakout", "--env-kwargs", given]
    training.train("impala", [*flags, "--eval-env-kwargs", '{"noop_max": 31}'])
    (config,) = made
    assert config.env == "Breakout"
    assert config.env_kwargs == PROTOCOL | {"repeat_action_probability": 0.25, "noop_max": 0}
    assert config.evaluated_kwargs["noop_max"] == 31
    assert not config.evaluated_kwargs["life_loss_info"]
    assert config.algo == hr.recipe("atari", "impala").algo


@pytest.mark.parametrize("algorithm", ["impala", "appo", "ppo", "impact"])
def test_a_core_that_is_asked_for_is_the_paper_s(algorithm, monkeypatch):
    made = []
    monkeypatch.setattr(training, "run", lambda config, started, quiet=False: made.append(config))
    training.train(algorithm, ["--recipe", "atari"])
    training.train(algorithm, ["--recipe", "atari", "--core", "lstm", "--previous-action-reward"])
    without, network = (config.network for config in made)
    assert without.core is None
    assert (network.core, network.core_size, network.previous_action_reward) == ("lstm", 256, True)
    assert network.conv == without.conv

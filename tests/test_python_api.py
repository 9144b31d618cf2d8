"""Python functions match the commands; runs get separate directories; policies save and load."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

import numpy as np
import pytest
from warm import run

import headrace as hr
from headrace.cli import main
from headrace.errors import CheckpointError, ConfigError, in_flags, setting
from headrace.rundir.directories import default_run_dir

TINY = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "total_steps": 64}
TINY |= {"eval_episodes": 0, "transport": "serial", "quiet": True}
SWEEP = """
import headrace as hr
from gymnasium.envs.classic_control import CartPoleEnv
from dataclasses import dataclass

class Cart(CartPoleEnv):
    pass

@dataclass(frozen=True)
class Mine(hr.A2C):
    extra: float = 1.0

if __name__ == "__main__":
    sizes = dict(num_actors=1, envs_per_actor=2, fragment_length=8, total_steps=64)
    found = hr.sweep(
        Cart, Mine(), {"extra": "uniform:1,2"}, trials=1, quiet=True, eval_episodes=1,
        transport="serial", **sizes
    )
    print([sorted(one) for one in found], found[0]["score"] is not None)
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A policy and its run directory, read-only."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    return hr.train("CartPole-v1", "ppo", run_dir=run_dir, **TINY), run_dir


def test_a_policy_is_saved_alone_and_loaded(trained, tmp_path):
    policy, run_dir = trained
    assert policy.save(tmp_path / "alone") == tmp_path / "alone"
    again = hr.load(tmp_path / "alone")
    obs = np.linspace(-0.1, 0.1, 4, dtype=np.float32)
    assert again.predict(obs)[0] == policy.predict(obs)[0]
    for name, value in policy.state_dict().items():
        assert (again.state_dict()[name] == value).all()
    again.save(tmp_path / "alone")  # in place of the first
    hr.load(run_dir).save(tmp_path / "deeper" / "folder")
    assert hr.load(str(tmp_path / "deeper/folder")).predict(obs)[0] == policy.predict(obs)[0]
    with pytest.raises(CheckpointError, match="is not a saved policy"):
        policy.save(run_dir)
    fresh = hr.Policy(policy.observation_space, policy.action_space)
    with pytest.raises(hr.ConfigError, match=r"hr.load\(run\)"):
        fresh.save(tmp_path / "fresh")


def test_curves_and_reports_are_written_from_python(trained, tmp_path):
    run_dir = trained[1]
    assert hr.plot(run_dir, tmp_path / "a.png") == tmp_path / "a.png"
    assert hr.plot(run_dir, tmp_path / "b.png", metrics="charts/SPS") == tmp_path / "b.png"
    with pytest.raises(hr.ConfigError, match="Did you mean"):
        hr.plot([run_dir], tmp_path / "c.png", ["charts/SPSS"])
    assert hr.report([run_dir], tmp_path / "a.html") == tmp_path / "a.html"
    assert (tmp_path / "a.png").stat().st_size > 0
    assert "<html" in (tmp_path / "a.html").read_text()
    with pytest.raises(hr.HeadraceError):
        hr.plot(tmp_path)


@pytest.mark.parametrize(
    ("sample", "text"),
    [
        ({"epochs": [1, 2]}, "epochs=choice:1, 2"),
        ({"learning_rate": np.array([1e-4, 1e-3])}, "learning_rate=choice:0.0001, 0.001"),
        ({"hidden": ([64, 64], [32])}, "hidden=choice:[64, 64], [32]"),
        ({"lr_schedule": ["linear", "constant"]}, "lr_schedule=choice:linear, constant"),
        ({"kl_stop": [None, 0.1], "gamma": "uniform:0.9,0.99"}, "kl_stop=choice:None, 0.1"),
    ],
)
def test_a_sweep_takes_lists_of_choices(sample, text, monkeypatch):
    studies = []

    def run(study, console):
        studies.append(study)
        raise KeyboardInterrupt

    monkeypatch.setattr("headrace.studies.api.run", run)
    with pytest.raises(KeyboardInterrupt):
        hr.sweep("CartPole-v1", hr.PPO(), sample, **TINY)
    one = studies[0].parameters[0]
    assert f"{one.name}={one.kind}:{', '.join(map(str, one.values))}" == text


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ({"gamma": 0.9}, r"must be a list of choices, as in \[1, 2, 4\].* as gamma=…"),
        ({"gamma": [0.9]}, "must contain two or more different choices"),
        ({"network": [hr.Network()]}, "must contain numbers, text, True"),
        ({}, "a sweep needs a setting to sample: give sample="),
    ],
)
def test_what_a_sweep_can_not_sample_is_told(sample, words, tmp_path):
    with pytest.raises(hr.ConfigError, match=words):
        hr.sweep("CartPole-v1", hr.PPO(), sample, output=tmp_path, **TINY)


def test_a_script_sweeps_its_own_environment_and_algorithm(tmp_path):
    (tmp_path / "script.py").write_text(SWEEP)
    said = run(tmp_path, "script.py")
    assert said.strip() == "[['extra', 'score', 'trial']] True"


def test_a_run_without_a_directory_gets_one_of_its_own_each_time(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for number in range(2):
        hr.train("CartPole-v1", "a2c", **TINY)
        assert len(list((tmp_path / "runs").iterdir())) == number + 1
    first = default_run_dir("a/b", "ppo")
    first.mkdir(parents=True)
    assert default_run_dir("a/b", "ppo") != first


def test_runs_that_begin_in_the_same_second_have_different_directories(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.trainer.start.default_run_dir", lambda *_: Path("runs/a"))
    monkeypatch.setattr("headrace.trainer.start.check", lambda *_: None)  # neither exists yet
    settings = {name: value for name, value in TINY.items() if name != "quiet"}
    config = hr.Config("CartPole-v1", hr.A2C(), **settings)
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(contextlib.closing(hr.Trainer(config))) for _ in range(2)]
        assert [one.run_dir for one in both] == [tmp_path / "runs/a", tmp_path / "runs/a-2"]


def test_a_run_that_is_refused_leaves_no_directory(tmp_path, monkeypatch):
    def refuse(*_):
        raise ConfigError("too large")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("headrace.trainer.training_loop.check_room", refuse)
    with pytest.raises(ConfigError, match="too large"):
        hr.train("CartPole-v1", "a2c", **TINY)
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_exists_is_answered_in_the_words_of_the_caller(trained, capsys):
    run_dir = trained[1]
    with pytest.raises(CheckpointError, match=r"with resume=True, .* with overwrite=True"):
        hr.train("CartPole-v1", "ppo", run_dir=run_dir, **TINY)
    assert main(["train", "ppo", "--env-id", "CartPole-v1", "--run-dir", str(run_dir)]) == 2
    said = capsys.readouterr().err
    assert "continue it with --resume, replace it with --overwrite" in said


def test_overwriting_lets_a_snippet_run_again(tmp_path):
    for _ in range(2):
        hr.train("CartPole-v1", "a2c", run_dir=tmp_path / "run", overwrite=True, **TINY)


def test_settings_are_written_as_the_caller_does():
    assert setting("overwrite") == "overwrite=True"
    assert setting("policies", "'per-agent'") == "policies='per-agent'"
    with in_flags():
        assert setting("overwrite") == "--overwrite"
        assert setting("policies", "'per-agent'") == "--policies per-agent"
    assert re.match("overwrite=", setting("overwrite"))


@pytest.mark.parametrize("env", ["ppo", hr.PPO, hr.PPO()], ids=["name", "class", "instance"])
def test_an_algorithm_in_the_place_of_the_environment_is_named(env):
    with pytest.raises(ConfigError, match=r"is an algorithm, .* write hr\.train"):
        hr.train(env, "CartPole-v1", **TINY)


def test_a_config_names_an_algorithm_in_the_place_of_the_environment():
    with pytest.raises(ConfigError, match=r"write hr\.Config\('CartPole-v1', 'ppo'\)"):
        hr.Config("ppo", "CartPole-v1")


def test_an_unknown_setting_of_the_run_is_shown_with_its_own_algorithm():
    with pytest.raises(ConfigError, match=r"belongs to the algorithm: PPO\(clip=…\)"):
        hr.Config("CartPole-v1", hr.PPO(), clip=0.1)

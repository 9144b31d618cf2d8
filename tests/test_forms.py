"""Flags accept other forms of values and explain other libraries' setting names."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import main
from headrace.cli.training import config_of
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.valid import aliases

PAGE = (Path(__file__).parents[1] / "docs/migrating.md").read_text(encoding="utf-8")
OWN = {f.name for kind in (Config, hr.PPO, hr.Network) for f in dataclasses.fields(kind)}
OWN |= {"max_lag"}


def config(*argv: str, algorithm: str = "ppo") -> Config:
    return config_of(algorithm, list(argv))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1000", 1_000), ("1e3", 1_000), ("1_000", 1_000), ("1.5e3", 1_500), ("1E3", 1_000)),
        *(("1k", 1_000), ("2K", 2_000), ("1M", 10**6), ("1.5m", 1_500_000), ("1B", 10**9)),
    ],
)
@pytest.mark.parametrize("form", ["--total-steps {}", "--total-steps={}", "--total_steps {}"])
def test_whole_numbers_are_read_in_the_forms_that_people_write(text, value, form):
    assert config(*form.format(text).split()).total_steps == value


@pytest.mark.parametrize("text", ["1.5", "1e-3", "1.0005k", "k", "1e999999999", "ten"])
def test_what_is_no_whole_number_is_refused(text):
    with pytest.raises((SystemExit, ConfigError)):
        config("--total-steps", text)


@pytest.mark.parametrize("text", ["32,64", "32 64", "=32,64", "32, 64", "32,64,"])
def test_rows_of_numbers_take_commas_and_blanks(text):
    words = f"--hidden{text}".split() if text.startswith("=") else ["--hidden", *text.split()]
    assert config(*words, "--seed", "1").network.hidden == (32, 64)


def test_short_names_and_schedules():
    found = config("--lr", "3e-4", "--env", "Acrobot-v1", "--clip", "0:0.2,1:0.1", "--epochs=1e1")
    assert (found.algo.learning_rate, found.env) == (3e-4, "Acrobot-v1")
    assert (str(found.algo.clip), found.algo.epochs) == ("0:0.2,1:0.1", 10)
    assert config("--num-actors", "auto", "--batch-size", "None").num_actors == "auto"
    assert config("--min-actors", "None", "--tasks", "CartPole-v1,Acrobot-v1").min_actors is None


def test_a_file_names_an_environment(tmp_path, monkeypatch):
    (tmp_path / "my_env.py").write_text(
        "from gymnasium.envs.classic_control import CartPoleEnv\nclass E(CartPoleEnv): ...\n"
    )
    monkeypatch.chdir(tmp_path)
    for name in ("my_env.py:E", "./my_env.py:E", str(tmp_path / "my_env.py:E")):
        found = config("--env-id", name)
        assert found.to_json()["env"] == "__main__:E"
        assert found.env_file == str(tmp_path / "my_env.py")
        assert hr.Config(name).env.__name__ == "E"
    for name, words in (("my_env.py:F", "defines no F"), ("no.py:E", "doesn't exist")):
        with pytest.raises(ConfigError, match=words):
            hr.Config(name)


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--n-steps", "--n-steps is Stable-Baselines3's name; use --fragment-length."),
        ("--n_steps", "use --fragment-length."),
        ("--ent-coef", "is Stable-Baselines3 and CleanRL's name; use --entropy-coef."),
        ("--total-timesteps", "use --total-steps."),
        ("--num-envs", "use --num-actors and --envs-per-actor."),
        ("--use-rnn", "use --core lstm."),
        ("--use-lstm", "is RLlib's name; use --core lstm."),
        ("--num-sgd-iter", "use --epochs."),
        ("--policy", "it isn't needed: the network follows from the spaces."),
        ("--verbose", "use --quiet."),
        ("--tensorboard-log", "it isn't needed: run_dir holds TensorBoard files."),
    ],
)
def test_flags_of_other_libraries_are_answered_with_ours(flag, words, capsys):
    assert main(["train", "ppo", flag, "1"]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: hr.PPO(lr=1e-3), "lr is RLlib's name; use learning_rate."),
        (lambda: hr.PPO(n_steps=1), "use fragment_length."),
        (lambda: hr.train("CartPole-v1", ent_coef=0.1), "use entropy_coef."),
        (lambda: hr.train("CartPole-v1", verbose=1), "use quiet."),
        (lambda: hr.Config(policy_kwargs={}), r"use network=hr.Network\(hidden="),
    ],
)
def test_keywords_of_other_libraries_are_answered_with_ours(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_classes_of_other_libraries_are_answered_with_ours():
    with pytest.raises(AttributeError, match="it isn't needed: scale_free, which is on"):
        _ = hr.VecNormalize


def rows(library: str) -> list[tuple[set[str], str]]:
    """Names and translation of each row of a library's table."""
    table = PAGE.partition(f"| {library} | headrace |\n")[2].partition("\n\n")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines()[1:]]
    return [(set(re.findall(r"`(\w+)=?`", left)) - OWN, right) for left, right in cells]


@pytest.mark.parametrize("library", aliases.libraries())
def test_the_table_in_code_is_the_one_of_the_page(library):
    known = aliases.libraries()[library]
    for names, right in rows(library):
        for name in names:
            assert name in known, f"{name} is on the page only"
            settings = [w for w in re.findall(r"\w+", known[name]) if w in OWN]
            assert any(w in right for w in settings) or not settings, (name, right)
    for name in known:
        assert name in PAGE, f"{name} is in the code only"
        assert name not in OWN

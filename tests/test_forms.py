"""Flags accept alternative forms of values and explain other libraries' setting names."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import re
from pathlib import Path

import pytest

import headrace as hr
from headrace.cli import main
from headrace.cli.training import config_of
from headrace.config import Config
from headrace.errors import ConfigError
from headrace.validation import aliases

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


@pytest.mark.parametrize(
    ("flag", "words"),
    [
        ("--noise-color", r"a number such as 0\.01\."),  # not a schedule
        ("--lr", "or points of a schedule"),
    ],
)
def test_a_schedule_is_suggested_only_where_it_is_valid(flag, words):
    with pytest.raises(ConfigError, match=words):
        config(flag, "pink")


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
        (
            "--tensorboard-log",
            "it isn't needed: run_dir holds TensorBoard files if tensorboard is installed.",
        ),
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
        (
            lambda: hr.Config(norm_obs=True),
            r"use normalize_observations. It belongs to the network",
        ),
        (lambda: hr.PPO(norm_reward=True), r"use normalize_returns\.$"),
        (lambda: hr.PPO(learning_starts=5), "isn't needed: algorithms train on the first rollouts"),
        (lambda: hr.PPO(discount=0.9), r"Acme's name; use gamma\.$"),
        (lambda: hr.train(num_workers=2), "RLlib and Sample Factory's name; use num_actors."),
        (lambda: hr.PPO(num_gpus=1), r"use device. It belongs to the run: hr.train\(…, device=…"),
        (lambda: hr.Config(framework="torch"), "isn't needed: networks are PyTorch modules"),
    ],
)
def test_keywords_of_other_libraries_are_answered_with_ours(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("VecNormalize", "it isn't needed: scale_free, which is on"),
        ("make_vec_env", "use hr.train, which makes the environments"),
        ("SAC", "has no algorithm SAC; it has A2C, A3C, APPO, .* and custom ones"),
        ("DQN", "has no algorithm DQN"),
        ("PP0", "Did you mean 'PPO'"),
    ],
)
def test_names_that_headrace_does_not_have_are_answered_with_ours(name, words):
    with pytest.raises(AttributeError, match=words):
        getattr(hr, name)
    assert not hasattr(hr, "__wrapped__")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            lambda: hr.PPO(total_steps=5),
            r"unknown to PPO. It belongs to the run: hr.train\(…, total",
        ),
        (lambda: hr.APPO(batch_size=64), r"It belongs to the run: hr.train\(…, batch_size=…\)"),
        (lambda: hr.PPO(hidden=(64,)), r"It belongs to the network: network=Network\(hidden=…\)"),
        (lambda: hr.PPO(max_lag=3), r"It belongs to the algorithm: APPO\(max_lag=…\)"),
        (lambda: hr.PPO(env="CartPole-v1"), r"It belongs to the run: hr.train\(env, hr.PPO\(…\)\)"),
        (lambda: hr.PPO(callbacks=[]), r"It belongs to hr.train: hr.train\(…, callbacks=…\)"),
        (lambda: hr.PPO(total_step=5), r"Did you mean 'total_steps'\? It belongs to the run"),
        (lambda: hr.Network(learning_rate=1), r"It belongs to the algorithm: APPO\(learning_rate"),
        (lambda: hr.train(algo=hr.PPO(), clip=1), r"It belongs to the algorithm: PPO\(clip=…\)"),
        (lambda: hr.sweep(core="lstm"), r"It belongs to the network: network=Network\(core=…\)"),
        (lambda: hr.PPO("MlpPolicy", "CartPole-v1"), r"write hr.train\(env, hr.PPO\(\)\)"),
        (lambda: hr.A2C(hr.make_vec("CartPole-v1", 1)), r"write hr.train\(env, hr.PPO\(\)\)"),
    ],
)
def test_misplaced_settings_are_told_where_they_belong(make, words):
    with pytest.raises(ConfigError, match=words):
        make()
    assert hr.PPO("0:1e-3,1:0").gamma == hr.PPO(1e-3).gamma


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("train --env X", "an algorithm before its flags: a2c, .* headrace train appo --env X"),
        ("train --env X ppo", "For example: headrace train ppo --env X"),
        ("train sac", r"'sac' is not an algorithm of train; choose .* or file.py:Class\.$"),
        ("train awr.py", "algo='awr.py' names a file only; give what it defines: awr.py:AWR$"),
        ("train ppo --env awr.py", "names a file only; give what it defines: awr.py:AWR$"),
        ("train no.py", "algo='no.py' can't be read .* give no.py:Name"),
        ("train ppo --total-steps 1e6x", "--total-steps 1e6x must be a whole number such as 5000"),
        ("train ppo --entropy-coef linear", "points of .* Did you mean --entropy-schedule linear"),
        ("train ppo --lr linear", "a number such as .* Did you mean --lr-schedule linear"),
        ("train ppo --engine threds", "must be one of auto, native, .* Did you mean 'threads'"),
        ("train ppo --num-actors two", "a whole number such as 5000 or 1e6, or auto"),
        ("train ppo --env-kwargs sutton", "must be name=value pairs, as in --env-kwargs gravity"),
    ],
)
def test_a_wrong_word_is_answered_in_one_sentence(line, words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "awr.py").write_text("class AWR: ...\nclass _Own: ...\n")
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert re.search(words, said.strip()), said


def test_custom_algorithms_explain_misplaced_settings_too():
    @dataclasses.dataclass(frozen=True)
    class Mine(hr.A2C):
        extra: float = 1.0

    for arguments, words in (
        ({"total_steps": 5}, "unknown to Mine. It belongs to the run"),
        ({"extre": 5}, "Did you mean 'extra'"),
    ):
        with pytest.raises(ConfigError, match=words):
            Mine(**arguments)
    with pytest.raises(ConfigError, match=r"Mine\('CartPole-v1'\) is invalid: an algorithm takes"):
        Mine("CartPole-v1")
    copied = copy.deepcopy(pickle.loads(pickle.dumps(hr.PPO(gamma=0.5))))
    assert dataclasses.replace(copied, lam=0.1).gamma == Mine(gamma=0.5).gamma == 0.5


def test_names_may_be_in_capitals():
    assert type(hr.Config(algo="PPO").algo) is hr.PPO
    assert type(config(algorithm="Ppo").algo) is hr.PPO


@pytest.mark.parametrize(
    ("words", "kwargs"),
    [
        ("sutton_barto_reward=True", {"sutton_barto_reward": True}),
        ("a=1,b=x", {"a": 1, "b": "x"}),
        ("a=1.5 b=[1,2] c=None", {"a": 1.5, "b": [1, 2], "c": None}),
        ('{"a":1}', {"a": 1}),
    ],
)
def test_arguments_of_environments_take_pairs_and_json(words, kwargs):
    assert config("--env-kwargs", *words.split(), "--seed", "1").env_kwargs == kwargs
    assert config(f"--env-kwargs={words.split()[0]}").env_kwargs.items() <= kwargs.items()
    repeated = [part for word in words.split() for part in ("--env-kwargs", word)]
    assert config(*repeated).env_kwargs == kwargs


def rows(library: str) -> list[tuple[set[str], str]]:
    """Return names and translation of each row of a library's table."""
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

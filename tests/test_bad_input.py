"""Invalid input raises a one-sentence error before any actor starts, and nothing is written."""

from __future__ import annotations

import contextlib
import json
import shutil

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, Sequence, Tuple
from safetensors.torch import load_file, save_file

import headrace as hr
import headrace.trainer.learner_actors
from headrace.errors import CheckpointError, ConfigError
from headrace.rundir import checkpoint


class SequenceEnv(gymnasium.Env):
    observation_space = Dict(position=Box(-1, 1, (2,)), words=Tuple([Sequence(Discrete(5))]))
    action_space = Discrete(2)

    def reset(self, *, seed=None, options=None):
        return {"position": np.zeros(2, np.float32), "words": ((1, 2),)}, {}


class IntegerBoxEnv(gymnasium.Env):
    observation_space = Box(-1, 1, (2,))
    action_space = Dict(arm=Tuple([Box(0, 9, (3,), np.int64)]))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}


class MaskedForceEnv(IntegerBoxEnv):
    action_space = Box(-1, 1, (1,))

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {"action_mask": np.ones(1, bool)}


class UnboundedForceEnv(IntegerBoxEnv):
    action_space = Dict(arm=Box(-np.inf, 1, (1,)))


@pytest.fixture(autouse=True)
def no_actors(monkeypatch):
    def start(*args, **kwargs):
        raise AssertionError("actors were started")

    monkeypatch.setattr(headrace.trainer.learner_actors, "RolloutSource", start)


def one_sentence(error: Exception, *words: object) -> None:
    text = str(error)
    assert "\n" not in text
    assert len(text) < 500
    for word in words:
        assert str(word) in text, text


BAD_SETTINGS = {
    "environment": ({"env": "CartPol-v1"}, ["env='CartPol-v1'", "CartPole-v1"]),
    "module": ({"env": "no_such_module:Id-v0"}, ["no_such_module"]),
    "not an environment": ({"env": 7}, ["env=7"]),
    "environment setting": ({"env_kwargs": {"sutton": 1}}, ["CartPole-v1", "'sutton'"]),
    "observations": (
        {"env": SequenceEnv},
        ["observation space at 'words'/0 Sequence", "FilterObservation"],
    ),
    "actions": ({"env": IntegerBoxEnv}, ["at 'arm'/0", "Box(0, 9", "use Discrete"]),
    "mask": ({"env": MaskedForceEnv}, ["action_mask in its info", "none of its actions"]),
    "squash": (
        {"env": UnboundedForceEnv, "network": hr.Network(squash_actions=True)},
        ["at 'arm'", "-inf"],
    ),
    "recurrent minibatches": (
        {
            "algo": hr.PPO(minibatches=9),
            "network": hr.Network(core="lstm"),
            "envs_per_actor": 8,
        },
        ["minibatches=9", "nearest: 8"],
    ),
    "async engine": ({"engine": "async"}, ["engine='async'", "transport='serial'"]),
    "batch of one actor": ({"batch_size": 100}, ["batch_size=100", "64", "nearest: 64 or 128"]),
    "batch of two actors": (
        {"batch_size": 192, "num_actors": 2},
        ["batch_size=192", "num_actors=2", "nearest: 128 or 256"],
    ),
    "small batch": ({"batch_size": 0}, ["batch_size=0", "nearest: 64"]),
    "no fragment": ({"fragment_length": 0}, ["fragment_length=0", "nearest: 1"]),
    "negative fragment": ({"fragment_length": -8}, ["fragment_length=-8", "nearest: 1"]),
    "no actor": ({"num_actors": 0}, ["num_actors=0", "nearest: 1"]),
    "half an actor": ({"num_actors": 1.5}, ["num_actors=1.5", "whole number"]),
    "a word for a number": ({"envs_per_actor": "8"}, ["envs_per_actor='8'", "whole number"]),
    "device": ({"device": "cuda:99"}, ["device='cuda:99'", "cpu"]),
    "transport": ({"transport": "shmem"}, ["transport='shmem'", "'shm'", "serial"]),
    "engine": ({"engine": "envpol"}, ["engine='envpol'", "'envpool'"]),
    "algorithm": ({"algo": "ppoo"}, ["algo='ppoo'", "Did you mean 'ppo'"]),
    "seed": ({"seed": -1}, ["seed=-1", "between 0 and"]),
    "lag": ({"max_policy_lag": -1}, ["max_policy_lag=-1", "0 or more"]),
    "evaluation": ({"eval_episodes": -1}, ["eval_episodes=-1", "0 or more"]),
    "timing": ({"algo": hr.APPO(), "deterministic": True}, ["deterministic=True", "serial"]),
    "close match": ({"actors": 8}, ["'actors'", "'num_actors'"]),
    "hyperparameter": ({"learning_rate": 1e-3}, ["'learning_rate'", "belongs to the algorithm"]),
    "both": ({"resume": True, "overwrite": True}, ["resume", "overwrite"]),
}


@pytest.mark.parametrize(("settings", "words"), BAD_SETTINGS.values(), ids=BAD_SETTINGS)
def test_a_wrong_setting_is_named_with_its_value_and_what_would_do(tmp_path, settings, words):
    sizes = {"algo": hr.PPO(), "num_actors": 1, "envs_per_actor": 8, "fragment_length": 8}
    arguments = {"env": "CartPole-v1", "run_dir": str(tmp_path / "run")} | sizes | settings
    with pytest.raises(ConfigError) as error:
        hr.train(**arguments)
    one_sentence(error.value, *words)
    assert not (tmp_path / "run").exists()


def test_the_gpu_of_a_mac_is_refused_with_the_reason(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    with pytest.raises(ConfigError) as error:
        hr.Config(device="mps")
    one_sentence(error.value, "device='mps'", "no float64", "choose cpu")


def test_what_config_refuses_starts_not_even_the_fork_server(monkeypatch):
    def start():
        raise AssertionError("the fork server was started")

    monkeypatch.setattr(headrace.trainer.start, "start_fork_server", start)
    batch = {"batch_size": 100, "num_learners": 3}
    for settings in (batch, {"fragment_length": 0}, {"device": "tpu"}, {"actor": 1}):
        with pytest.raises(ConfigError):
            hr.train("CartPole-v1", **settings)
    with pytest.raises(ConfigError):
        hr.train("CartPol-v1")


@pytest.mark.parametrize("algorithm", [hr.IMPALA, hr.APPO])
def test_rho_bar_below_c_bar_is_refused(algorithm):
    with pytest.raises(ConfigError) as error:
        algorithm(rho_bar=0.5, c_bar=0.8)
    one_sentence(error.value, "rho_bar=0.5", "c_bar=0.8", "nearest: 0.8")


def test_a_path_in_place_of_a_policy_is_refused_with_the_call_that_loads_it():
    with pytest.raises(ConfigError) as error:
        hr.evaluate("runs/x", "CartPole-v1")
    one_sentence(error.value, "policy='runs/x' must be a policy, as hr.load(run_dir) returns")


def test_environment_settings_that_no_file_can_hold_are_refused(tmp_path):
    with pytest.raises(ConfigError) as error:
        hr.Config("CartPole-v1", env_kwargs={"start": np.zeros(2)})
    one_sentence(error.value, "env_kwargs", "start")


@pytest.mark.parametrize("name", ["env_kwargs", "eval_env_kwargs", "eval_envs"])
@pytest.mark.parametrize("value", [float("inf"), float("nan"), {1: 2.0}, [{None: 0}]])
def test_environment_settings_that_a_resumed_run_would_read_otherwise_are_refused(name, value):
    kwargs = {"rewards": value}
    kwargs = {"hard": {"env_kwargs": kwargs}} if name == "eval_envs" else kwargs
    with pytest.raises(ConfigError) as error:
        hr.Config("CartPole-v1", **{name: kwargs})
    one_sentence(error.value, name, "rewards")


# -- run directories and checkpoints ----------------------------------------------------------


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The directory of a short run, read-only."""
    run_dir = tmp_path_factory.mktemp("trained") / "run"
    sizes = {"num_actors": 1, "envs_per_actor": 8, "fragment_length": 8}
    sizes |= {"transport": "serial", "total_steps": 128}
    network = hr.Network(normalize_observations=True)
    config = hr.Config(algo=hr.PPO(), run_dir=str(run_dir), network=network, **sizes)
    with contextlib.closing(hr.Trainer(config, notify=str)) as trainer:
        assert len(list(trainer)) >= 1
    return run_dir


@pytest.fixture
def copied(trained, tmp_path):
    """A run directory to damage, and its latest checkpoint."""
    shutil.copytree(trained, tmp_path / "run", symlinks=True)
    return tmp_path / "run"


def test_a_run_directory_that_exists_is_left_alone(copied):
    before = sorted((p, p.stat().st_mtime_ns) for p in copied.rglob("*"))
    with pytest.raises(CheckpointError) as error:
        hr.train("CartPole-v1", run_dir=str(copied))
    one_sentence(error.value, copied, "resume=True", "overwrite=True")
    assert sorted((p, p.stat().st_mtime_ns) for p in copied.rglob("*")) == before


def test_overwrite_deletes_nothing_but_a_run(tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(CheckpointError) as error:
        hr.train("CartPole-v1", run_dir=str(tmp_path), overwrite=True)
    one_sentence(error.value, tmp_path, "not a run directory")
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def cut(file, share: float) -> None:
    data = file.read_bytes()
    file.write_bytes(data[: int(len(data) * share)])


def other_network(file) -> None:
    weights = load_file(file)
    name = next(n for n, w in weights.items() if w.ndim == 2)
    save_file(weights | {name: weights[name][:, :1].contiguous()}, file)


def other_statistics(file) -> None:
    weights = load_file(file)
    name = "torso.normalizer.mean"
    save_file(weights | {name: weights[name][:3].contiguous()}, file)


def config_of_something_else(file) -> None:
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"config": {"model": "gpt"}}))


DAMAGE = {
    "half the weights": ("policy.safetensors", lambda f: cut(f, 0.5)),
    "the start of the weights": ("policy.safetensors", lambda f: cut(f, 0.01)),
    "no weights": ("policy.safetensors", lambda f: cut(f, 0.0)),
    "weights of another network": ("policy.safetensors", other_network),
    "statistics of another shape": ("policy.safetensors", other_statistics),
    "foreign weights": ("policy.safetensors", lambda f: save_file({}, f)),
    "half a config": ("config.json", lambda f: cut(f, 0.5)),
    "another program's config": ("config.json", lambda f: f.write_text('{"model": "gpt"}')),
    "a list": ("config.json", lambda f: f.write_text("[1, 2]")),
    "only the format": ("config.json", lambda f: f.write_text('{"format": 1}')),
    "another's settings": ("config.json", config_of_something_else),
    "a later format": ("config.json", lambda f: f.write_text('{"format": 99}')),
    "no config": ("config.json", lambda f: f.unlink()),
}


@pytest.mark.parametrize(("name", "damage"), DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_checkpoint_is_neither_loaded_nor_resumed(copied, name, damage):
    folder = checkpoint.find(copied)
    damage(folder / name)
    for use in (hr.load, hr.resume):
        with pytest.raises(CheckpointError) as error:
            use(copied)
        one_sentence(error.value, folder.name)


@pytest.mark.parametrize("share", [0.9, 0.5, 0.0])
def test_a_damaged_trainer_state_is_not_resumed_and_the_policy_still_loads(copied, share):
    folder = checkpoint.find(copied)
    cut(folder / "trainer.pt", share)
    with pytest.raises(CheckpointError) as error:
        hr.resume(copied, total_steps=256)
    one_sentence(error.value, folder / "trainer.pt", "corrupt")
    assert hr.load(copied).predict(np.zeros(4, np.float32))[0] in (0, 1)


@pytest.mark.parametrize("other", [hr.A2C(), hr.APPO()], ids=["a2c", "appo"])
def test_a_run_is_not_resumed_with_another_algorithm(copied, other):
    with pytest.raises(CheckpointError) as error:
        hr.resume(copied, algo=other, total_steps=256)
    one_sentence(error.value, "trained with ppo")


def test_what_is_not_there_is_said_to_be_missing(copied, tmp_path):
    (tmp_path / "empty").mkdir()
    for use, words in (
        (lambda: hr.load(tmp_path / "nowhere"), ["nowhere", "does not exist"]),
        (lambda: hr.resume(tmp_path / "nowhere"), ["nowhere", "does not exist"]),
        (lambda: hr.load(copied, which="bets"), ["no bets checkpoint"]),
        (
            lambda: hr.load(tmp_path / "empty"),
            ["no checkpoint yet: a run saves one every checkpoint_interval"],
        ),
        (lambda: hr.load(tmp_path), ["is not a run directory. Did you mean", copied]),
    ):
        with pytest.raises(CheckpointError) as error:
            use()
        one_sentence(error.value, *words)

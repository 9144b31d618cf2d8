"""Changes that an environment makes to its process don't affect the trainer."""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from tries import few_of
from worlds.messy import MessyEnv

import headrace as hr
from headrace.errors import EnvironmentFault
from headrace.processes import library_defaults


def state() -> dict:
    mask = os.umask(0)
    os.umask(mask)
    return {
        "directory": os.getcwd(),
        "umask": mask,
        "environ": os.environ.get("MESSY"),
        "seterr": np.geterr(),
        "print": np.get_printoptions()["precision"],
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "threads": torch.get_num_threads(),
        "generator": torch.get_rng_state().tolist(),
        "signals": [signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGUSR2)],
        "logging": list(logging.getLogger().handlers),
        "path": list(sys.path),
        "recursion": sys.getrecursionlimit(),
        "excepthook": sys.excepthook,
        "warnings": list(warnings.filters),
    }


@pytest.fixture
def at_home(tmp_path, monkeypatch) -> Path:
    """The working directory of a run, with another one next to it."""
    for name in ("home", "away"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "home")
    return tmp_path / "home"


def test_nothing_of_an_environments_process_reaches_the_trainers(tiny, at_home):
    before = state()
    how = {"deed": "everything", "to": str(at_home.parent / "away")}
    hr.train(tiny(env=MessyEnv, env_kwargs=how, run_dir="r", eval_episodes=1))
    after = state()
    assert {k for k in before if before[k] != after[k]} == set()
    assert (at_home / "r" / "summary.json").exists()
    assert os.listdir(at_home.parent / "away") == []


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_an_environment_that_changes_directory_moves_no_file_of_the_run(tiny, at_home, transport):
    how = {"deed": "chdir", "when": "reset", "to": str(at_home.parent / "away")}
    settings = {"transport": transport, "eval_episodes": 1, "eval_interval": 320}
    hr.train(tiny(env=MessyEnv, env_kwargs=how, run_dir="r", checkpoint_interval=320, **settings))
    os.chdir(at_home)
    settings |= {"run_dir": "s", "init_from": "r", "total_steps": 64}
    hr.train(tiny(env=MessyEnv, env_kwargs=how, **settings))
    for name in ("r", "s"):
        assert (at_home / name / "summary.json").exists()
        assert (at_home / name / "checkpoints" / "latest").exists()
    assert os.listdir(at_home.parent / "away") == []


DEEDS = ["float64", "meta", "no grad", "numpy"]
ONCE = [("serial", "float64", "init"), ("serial", "meta", "reset"), ("serial", "no grad", "step")]
ONCE += [("serial", "numpy", "reset"), ("shm", "float64", "init")]
EACH = [("serial", deed, when) for deed in DEEDS for when in ("init", "reset", "step")]
EACH += [("shm", deed, "init") for deed in DEEDS]


@pytest.mark.parametrize(("transport", "deed", "when"), few_of(EACH, ONCE))
def test_defaults_that_an_environment_changes_change_no_training(tiny, transport, deed, when):
    how = {"env_kwargs": {"deed": deed, "when": when}, "transport": transport, "eval_episodes": 1}
    before = state()
    policy = hr.train(tiny(env=MessyEnv, total_steps=128, **how))
    assert all(p.dtype == torch.float32 and p.requires_grad for p in policy.parameters())
    assert state() == before


@pytest.mark.parametrize(
    ("transport", "deed"),
    few_of([("serial", deed) for deed in DEEDS], [("serial", "float64"), ("shm", "meta")]),
)
def test_defaults_of_the_users_script_change_no_training_and_stay(tiny, transport, deed):
    with library_defaults():
        MessyEnv(deed)
        before = state()
        config = tiny(transport=transport, total_steps=128, eval_episodes=1)
        policy = hr.train(config)
        assert state() == before
        loaded = hr.load(config.run_dir)
        assert hr.evaluate(loaded, "CartPole-v1", 1).episodes == 1
        assert {p.dtype for p in (*policy.parameters(), *loaded.parameters())} == {torch.float32}
        assert state() == before


@pytest.mark.parametrize(
    ("when", "deed", "words"),
    [
        ("init", "sys.exit", "SystemExit: 3"),
        ("step", "sys.exit", "SystemExit: 3"),
        ("init", "os._exit", "ended its process (exit code 4)"),
        ("step", "segfault", "ended its process (signal SIGSEGV)"),
    ],
)
def test_an_environment_that_ends_its_process_is_named(tiny, deed, words, when):
    config = tiny(env=MessyEnv, env_kwargs={"deed": deed, "when": when})
    with pytest.raises(EnvironmentFault) as error:
        hr.train(config)
    assert str(error.value).startswith("MessyEnv ")
    assert words in str(error.value)
    assert not Path(config.run_dir).exists()


def test_an_environment_that_hangs_is_named_and_a_slow_one_is_waited_for(tiny):
    with pytest.raises(EnvironmentFault, match="MessyEnv did not answer within 1 s"):
        hr.train(tiny(env=MessyEnv, env_kwargs={"deed": "hang"}, actor_timeout_s=1.0))
    how = {"deed": "slow"}
    settings = {"envs_per_actor": 1, "batch_size": 8, "total_steps": 8, "overwrite": True}
    hr.train(tiny(env=MessyEnv, env_kwargs=how, algo=hr.A2C(), **settings))


def test_what_an_environment_warns_of_is_warned_of_here(tiny):
    def warning():
        warnings.warn("the licence ends tomorrow", stacklevel=1)
        return MessyEnv("numpy")

    with pytest.warns(UserWarning, match="the licence ends tomorrow"):
        hr.train(tiny(env=warning, total_steps=64))

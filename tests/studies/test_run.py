"""A study's run starts, resumes, or is rejected if its environment is known."""

from __future__ import annotations

import json

import pytest

import headrace as hr
from headrace.errors import CheckpointError, NoRoom
from headrace.studies.pbt.training import train_run as pbt
from headrace.studies.sweep.trials import train_run as sweep
from headrace.trainer import memory_check

SIZES = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 4, "eval_episodes": 0}
KNOWN = {
    "pbt": (pbt, {"hyper": {"learning_rate": 1e-3}}),
    "sweep": (sweep, {"prune": "none", "suite": None}),
}


def request(tmp_path, **settings) -> dict:
    known = {"algo": hr.A2C(), "transport": "serial", "total_steps": 8, **SIZES}
    config = hr.Config(run_dir=str(tmp_path / "run"), **(known | settings))
    return {"config": json.loads(json.dumps(config.to_json()))}


@pytest.mark.parametrize("study", KNOWN)
def test_another_users_run_goes_on_if_it_names_the_code_that_the_command_names(
    tmp_path, monkeypatch, study
):
    train_run, known = KNOWN[study]
    own = request(tmp_path, env="worlds:CountingEnv")
    assert train_run(own | known) == {}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    assert train_run(own | known) == {}
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "a third"))
    for other in ({"env_kwargs": {"length": 3}}, {"env": "CartPole-v1"}):
        with pytest.raises(CheckpointError, match="is not signed by you on this machine"):
            train_run(request(tmp_path, **({"env": "worlds:CountingEnv"} | other)) | known)


@pytest.mark.parametrize("study", KNOWN)
def test_a_setting_that_the_environment_refuses_is_told(tmp_path, study):
    train_run, known = KNOWN[study]
    found = train_run(request(tmp_path, stacked_frames="once") | known)
    assert "stacked_frames='once'" in found["error"]


@pytest.mark.parametrize("study", KNOWN)
def test_a_run_for_which_memory_was_short_begins_when_there_is_some(tmp_path, monkeypatch, study):
    train_run, known = KNOWN[study]
    with monkeypatch.context() as short:
        short.setattr(memory_check, "free_bytes", lambda: 1)
        with pytest.raises(NoRoom, match=r"GB of memory, but only .* GB are free"):
            train_run(request(tmp_path, env="CartPole-v1") | known)
    assert train_run(request(tmp_path, env="CartPole-v1") | known) == {}

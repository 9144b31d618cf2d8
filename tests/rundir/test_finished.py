"""Runs that have nothing left to train are recognised before any process starts."""

from __future__ import annotations

import json
import re

import pytest

import headrace as hr
from headrace import errors
from headrace.errors import ConfigError

TINY = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("finished") / "run"
    hr.train("CartPole-v1", "ppo", total_steps=64, run_dir=run_dir, eval_episodes=1, **TINY)
    return run_dir


def contents(run_dir):
    return {path: path.read_bytes() for path in run_dir.rglob("*") if path.is_file()}


def test_fewer_steps_than_it_has_trained_raise_an_error(finished):
    before = contents(finished)
    with pytest.raises(ConfigError, match=r"total_steps=16 must be at least \d\d, which .*run has"):
        hr.resume(finished, total_steps=16)
    assert contents(finished) == before


def test_a_finished_run_is_not_touched(finished, capsys):
    before = contents(finished)
    policy = hr.resume(finished)
    assert policy.predict([0.0] * 4)[0] in (0, 1)
    assert contents(finished) == before
    said = capsys.readouterr().out
    steps = json.loads((finished / "summary.json").read_text())["env_steps"]
    assert steps >= 64
    assert f"nothing left to train: {finished} has {steps} steps" in said
    assert f"set for example total_steps={2 * steps}" in said


def test_a_run_that_its_time_ended_is_not_touched(tmp_path, capsys):
    run_dir = tmp_path / "run"
    small = {"stop_time_s": 0.01, "total_steps": 10**9, "eval_episodes": 1}
    hr.train("CartPole-v1", "ppo", run_dir=run_dir, **small, **TINY)
    before = contents(run_dir)
    hr.resume(run_dir)
    assert contents(run_dir) == before
    said = capsys.readouterr().out
    assert re.search(r"has trained for \d+ s, and stop_time_s is 0.01; .*stop_time_s=2", said)


@pytest.mark.parametrize(
    "change", [{"interrupted": True}, {"no_evaluation": "x"}, {"env_steps": 1}]
)
def test_a_run_without_its_evaluation_is_completed(finished, change, capsys):
    path = finished / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps(summary | change))
    hr.resume(finished)
    assert "nothing left" not in capsys.readouterr().out
    assert json.loads(path.read_text())["evaluation"]["episodes"] == 1


def test_more_steps_continue_it(finished):
    hr.resume(finished, total_steps=128)
    assert json.loads((finished / "summary.json").read_text())["env_steps"] >= 128


def test_the_command_that_continues_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert errors.resume_command(tmp_path / "runs/a b") == "hr.resume('runs/a b')"
    with errors.in_flags():
        assert errors.resume_command(tmp_path / "runs/a b") == "headrace resume 'runs/a b'"
        assert errors.resume_command(tmp_path.parent) == f"headrace resume {tmp_path.parent}"

"""``stop_return`` stops a run that an evaluation confirms; summaries have both modes of actions."""

from __future__ import annotations

import itertools
import json

import pytest
from tries import few_of
from worlds.changing import Changing

import headrace as hr
from headrace.evaluating.evaluator import Evaluator
from headrace.rundir.files import read_jsonl

TOTAL = 2_048
HOW = {
    "num_actors": 2, "envs_per_actor": 4, "fragment_length": 16, "total_steps": TOTAL,
    "transport": "serial", "eval_episodes": 4,
}  # fmt: skip


def trained(run_dir, **given):
    """Train hardly at all, so that the policy stays random; return the summary."""
    hr.train(Changing, hr.PPO(learning_rate=1e-9), run_dir=run_dir, **{**HOW, **given})
    return json.loads((run_dir / "summary.json").read_text())


HALF = {"stop_return": 4.0}  # of 8; a random policy has 6.25, the most likely action 1
STOPPED = [
    {"eval_deterministic": False},
    {"eval_episodes": 0},
    {"eval_env_kwargs": {"length": 8}},
    {"eval_deterministic": False, "num_learners": 2, "transport": "shm"},
]


@pytest.mark.parametrize("given", few_of(STOPPED, STOPPED[:3]), ids=str)
def test_a_run_stops_where_evaluations_agree_or_do_not_count(tmp_path, capsys, given):
    steps = trained(tmp_path / "run", **HALF, **given)["env_steps"]
    assert steps < TOTAL / 2
    line = f"reached stop_return=4 after {steps:,} of {TOTAL:,} steps"
    assert capsys.readouterr().out.count(line) == 1


CONTINUED = [{}, {"num_learners": 2, "transport": "shm"}]


@pytest.mark.parametrize("given", few_of(CONTINUED, CONTINUED[1:]), ids=str)
def test_a_run_continues_where_the_reported_actions_are_worse(tmp_path, capsys, given):
    summary = trained(tmp_path / "run", **HALF, **given)
    assert summary["env_steps"] >= TOTAL
    line = "reached stop_return=4, but an evaluation returned 1.0 with the most likely actions"
    assert capsys.readouterr().out.count(line) == 1
    steps = [row["env_steps"] for row in read_jsonl(tmp_path / "run/evaluations.jsonl")]
    assert len(steps) > 2
    assert all(b >= 1.1 * a for a, b in itertools.pairwise(steps))


def test_an_interrupted_confirmation_is_no_success(tmp_path, monkeypatch, capsys):
    config = hr.Config(
        Changing, hr.PPO(learning_rate=1e-9), run_dir=str(tmp_path / "run"), **HALF, **HOW
    )
    with hr.Trainer(config) as trainer:
        monkeypatch.setattr(Evaluator, "wait", lambda *_: trainer.interrupt())
        assert list(trainer)[-1].env_steps < TOTAL
    assert "reached stop_return" not in capsys.readouterr().out


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_summary_has_returns_of_both_kinds_of_actions(tmp_path, capsys, deterministic):
    summary = trained(tmp_path / "run", total_steps=512, eval_deterministic=deterministic)
    played = summary["evaluation"]
    one, other = sorted([played, played["other_mode"]], key=lambda x: not x["deterministic"])
    assert (one["deterministic"], other["deterministic"]) == (True, False)
    assert one["mean"] == 1.0
    assert other["mean"] > 4.0
    assert other["episodes"] == 4
    out = capsys.readouterr().out
    assert f"{'sampled actions' if deterministic else 'deterministic policy'} " in out


def test_a_long_evaluation_has_one_kind_of_actions(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.evaluating.evaluator._LONG_S", 0.0)
    assert trained(tmp_path / "run", total_steps=512)["evaluation"]["other_mode"] is None

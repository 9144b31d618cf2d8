"""``stop_time_s`` ends a run after seconds of training, and its schedules with it."""

from __future__ import annotations

import json

import pytest

import headrace as hr
from headrace.rundir.files import read_jsonl
from headrace.rundir.run_progress import Progress
from headrace.rundir.terminal import Report
from headrace.schedules import share_done, steps_at_end
from headrace.trainer.hyperparameters import CurrentHyperparameters

HOW = {
    "num_actors": 2, "envs_per_actor": 4, "fragment_length": 16, "transport": "serial",
    "log_interval_s": 0.0, "eval_episodes": 0,
}  # fmt: skip


@pytest.fixture
def ticking(monkeypatch):
    """Lets every update take a second of training."""

    def now(progress):
        progress.trained_s = float(progress.updates)
        return progress.trained_s

    monkeypatch.setattr(Progress, "now", now)


@pytest.mark.parametrize(
    ("steps", "seconds", "limit", "share", "end"),
    [
        (0, 0.0, 10.0, 0.0, 1_000),
        (0, 1.0, 10.0, 0.1, 1_000),  # no step yet
        (100, 7.0, None, 0.1, 1_000),
        (100, 0.5, 10.0, 0.1, 1_000),  # by its steps
        (100, 5.0, 10.0, 0.5, 200),  # by its time
        (400, 10.0, 10.0, 1.0, 400),
        (400, 20.0, 10.0, 2.0, 200),
    ],
)
def test_a_run_ends_at_its_steps_or_its_time(steps, seconds, limit, share, end):
    assert share_done(steps, 1_000, seconds, limit) == pytest.approx(share)
    assert steps_at_end(steps, 1_000, seconds, limit) == pytest.approx(end)


@pytest.mark.parametrize("algo", [hr.PPO(), hr.A3C(lr_schedule="linear")], ids=["ppo", "a3c"])
def test_a_run_ends_at_its_time_with_a_learning_rate_of_zero(tmp_path, ticking, capsys, algo):
    limits = {"stop_time_s": 9.0, "total_steps": 10**9}
    hr.train("CartPole-v1", algo, run_dir=tmp_path / "run", **limits, **HOW)
    rows = read_jsonl(tmp_path / "run/metrics.jsonl")
    assert rows[-1]["charts/updates"] == 10
    said = capsys.readouterr().out
    steps = f"{rows[-1]['env_steps']:,}"
    assert said.count(f"reached stop_time_s=9 after {steps} of 1,000,000,000 steps") == 1
    rates = {row["charts/updates"]: row["charts/learning_rate"] for row in rows}
    for update, rate in rates.items():  # of the next update
        assert rate == pytest.approx(
            algo.learning_rate * (1 - (update - 1) / 9), rel=1e-3, abs=1e-9
        )
    assert len(rates) > 5


def test_a_run_says_that_its_steps_ended_before_its_time(tmp_path, ticking, capsys):
    limits = {"stop_time_s": 900.0, "total_steps": 256}
    hr.train("CartPole-v1", hr.PPO(), run_dir=tmp_path / "run", **limits, **HOW)
    assert "reached total_steps=256 before stop_time_s=900" in capsys.readouterr().out


def test_the_time_before_a_resume_counts(tmp_path, ticking, capsys):
    run_dir, limits = tmp_path / "run", {"stop_time_s": 4.0, "total_steps": 10**9}
    hr.train("CartPole-v1", hr.PPO(), run_dir=run_dir, **limits, **HOW)
    hr.resume(run_dir, stop_time_s=8.0)
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["updates"] == 9
    assert capsys.readouterr().out.count("reached stop_time_s") == 2


def test_learners_stop_together(tmp_path, capsys):
    limits = {"stop_time_s": 0.5, "total_steps": 10**9, "num_learners": 2, "transport": "shm"}
    hr.train("CartPole-v1", hr.PPO(), run_dir=tmp_path / "run", **{**HOW, **limits})
    assert capsys.readouterr().out.count("reached stop_time_s=0.5") == 1
    assert read_jsonl(tmp_path / "run/metrics.jsonl")[-1]["charts/learning_rate"] == 0.0


def test_the_time_left_is_that_of_the_nearer_limit(tmp_path, capsys):
    config = hr.Config(total_steps=1_000, stop_time_s=100.0, run_dir=str(tmp_path))
    report = Report(config)
    report._sps = 1.0
    result = type("Result", (), {"env_steps": 500, "seconds": 90.0})
    assert report._done(result, report._begun_s).startswith(" 90% ")
    assert report._done(result, report._begun_s).endswith("10 left")
    result.seconds = 1.0
    assert report._done(result, report._begun_s).startswith(" 50% ")


def test_hyperparameters_follow_the_nearer_limit():
    current = CurrentHyperparameters(hr.PPO(learning_rate=1.0, clip="0:0.2,1:0.1"))
    rate, others = current.rates(100, steps_at_end(100, 1_000, 5.0, 10.0))
    assert (rate, others["clip"]) == (pytest.approx(0.5), pytest.approx(0.15))
    assert current.all(100, 1_000)["clip"] == pytest.approx(0.19)


def test_a_run_that_must_repeat_exactly_is_refused():
    with pytest.raises(hr.ConfigError, match="deterministic=True must be False with stop_time_s"):
        hr.Config(algo=hr.PPO(), stop_time_s=1.0, deterministic=True)


def test_a_checkpoint_without_the_agreed_time_has_the_trained_one():
    progress = Progress()
    progress.load_state_dict({"trained_s": 60.0, "env_steps": 100})
    assert progress.agreed_s == 60.0

"""Tests of kl_limit, which reduces the learning rate after large updates."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass

import pytest

import headrace as hr
from headrace.trainer.hyperparameters import limited

TINY = {
    "num_actors": 1, "envs_per_actor": 4, "fragment_length": 8, "transport": "serial",
    "quiet": True, "eval_episodes": 0, "log_interval_s": 0.0,
}  # fmt: skip
PLAIN = {"lr_schedule": "constant", "epochs": 2, "minibatches": 1}


@pytest.mark.parametrize(
    ("factor", "kl", "limit", "expected"),
    [
        (1.0, 0.04, 0.05, 1.0),
        (1.0, 0.08, 0.05, math.sqrt(0.05 / 0.08)),  # the KL grows with the square of the step
        (1.0, 5.0, 0.05, 0.5),
        (0.011, 5.0, 0.05, 0.01),
        (0.5, 0.04, 0.05, 0.5),
        (0.5, 0.02, 0.05, 0.55),
        (0.95, 0.02, 0.05, 1.0),
        (0.5, math.nan, 0.05, 0.5),
        (1.0, math.inf, 0.05, 0.5),
        (0.3, 5.0, None, 1.0),
    ],
)
def test_the_factor_falls_with_the_excess_and_recovers(factor, kl, limit, expected):
    assert limited(factor, kl, limit) == pytest.approx(expected)


def rates(run_dir) -> list[float]:
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line)["charts/learning_rate"] for line in lines]


def test_updates_over_the_limit_halve_the_rate_and_a_resumed_run_keeps_it(tmp_path):
    algo = hr.APPO(**PLAIN, learning_rate=1e-2, kl_limit=1e-9)
    run_dir = tmp_path / "run"
    hr.train("CartPole-v1", algo, run_dir=run_dir, total_steps=128, **TINY)
    before = len(rates(run_dir))
    hr.resume(run_dir, total_steps=192, quiet=True)
    found = rates(run_dir)
    assert len(found) > before > 2
    assert found == pytest.approx([max(1e-4, 1e-2 * 0.5**n) for n in range(1, len(found) + 1)])


@pytest.mark.parametrize("make", [hr.A2C, hr.A3C, lambda **x: hr.PPO(**x, epochs=1, minibatches=1)])
def test_a_limit_that_no_step_could_exceed_is_refused(make):
    with pytest.raises(hr.ConfigError, match=r"kl_limit=0.05 must be None where each update is"):
        make(kl_limit=0.05)


@dataclass(frozen=True)
class SeveralBatches(hr.PPO):
    """May take several steps on a batch, whatever ``epochs`` says."""

    def batches(self, policy, fresh, state, group):
        return [fresh()]


def test_subclasses_with_batches_of_their_own_may_limit_the_kl():
    assert SeveralBatches(epochs=1, minibatches=1, kl_limit=0.05).kl_limit == 0.05


@pytest.mark.parametrize("algo", [hr.PPO(**PLAIN), hr.APPO(**PLAIN, kl_limit=None)])
def test_without_a_limit_the_rate_stays(algo, tmp_path):
    hr.train("CartPole-v1", algo, run_dir=tmp_path / "run", total_steps=96, **TINY)
    assert set(rates(tmp_path / "run")) == {algo.learning_rate}


def test_a_callback_that_writes_the_rate_back_changes_nothing(tmp_path):
    def again(result, trainer):
        trainer.set_hyperparameter("learning_rate", trainer.hyperparameters["learning_rate"])

    algo = hr.APPO(**PLAIN, learning_rate=1e-2, kl_limit=1e-9)
    hr.train("CartPole-v1", algo, [again], run_dir=tmp_path / "run", total_steps=96, **TINY)
    found = rates(tmp_path / "run")
    assert found == pytest.approx([1e-2 * 0.5**n for n in range(1, len(found) + 1)])

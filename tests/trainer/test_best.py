"""Evaluations during training save the best policy as ``best`` at once."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import headrace as hr
import headrace.evaluating.evaluator
from headrace.api import resume_config
from headrace.evaluation import Evaluation
from headrace.rundir import checkpoint
from headrace.rundir.files import read_jsonl


@pytest.fixture
def evaluated(tiny, monkeypatch):
    """Trains with evaluations every 64 steps that have these means.

    Returns the trainer, and the weights of each evaluation.
    """

    def train(means: list[float], config: hr.Config | None = None, **settings):
        left, played = iter(means), []

        def evaluate(policy, **others) -> Evaluation:
            if not others["deterministic"]:  # the other mode, at the end of a run
                return Evaluation.of([0.0], [9])
            played.append({k: v.clone() for k, v in policy.state_dict().items()})
            return Evaluation.of([next(left)], [9])

        monkeypatch.setattr(headrace.evaluating.evaluator, "evaluate", evaluate)
        given = {"eval_episodes": 1, "eval_interval": 64, "transport": "serial"}
        config = config or tiny(total_steps=64 * len(means) - 40, **given | settings)
        with hr.Trainer(config, notify=str) as trainer:
            for _ in trainer:
                if len(played) == len(means):
                    break
        return trainer, played

    return train


def is_best(trainer: hr.Trainer, weights: dict[str, torch.Tensor]) -> bool:
    best = hr.load(trainer.run_dir, "best").state_dict()
    return all(torch.equal(value, weights[name]) for name, value in best.items())


def test_the_policy_that_was_evaluated_highest_is_best_whatever_is_saved_later(evaluated):
    trainer, played = evaluated([1.0, 5.0, 3.0, 5.0], checkpoint_interval=64, keep_checkpoints=1)
    assert len(played) == 4
    assert is_best(trainer, played[1])
    assert not is_best(trainer, played[3])
    best = checkpoint.find(trainer.run_dir, "best")
    assert checkpoint.read_config(best)["evaluation"]["mean"] == 5.0
    assert 128 <= int(best.name.split("_")[1]) < 192
    assert {path.name for path in best.iterdir()} >= {"policy.safetensors", "config.json"}
    assert hr.evaluate(hr.load(trainer.run_dir, "best"), "CartPole-v1", 1).episodes == 1


def test_best_is_there_before_the_first_checkpoint(evaluated):
    trainer, played = evaluated([2.0])
    assert is_best(trainer, played[0])
    assert trainer.config.checkpoint_interval > trainer.env_steps


def test_a_resumed_run_keeps_a_best_that_is_not_beaten(evaluated):
    trainer, played = evaluated([4.0])
    settings = {"total_steps": 10**6, "eval_interval": 64, "log_interval_s": 0.0}
    again = resume_config(trainer.run_dir, **settings)
    _, later = evaluated([3.0], again)
    assert is_best(trainer, played[0])
    _, later = evaluated([6.0], again)
    assert is_best(trainer, later[0])


def test_the_last_evaluation_of_a_run_may_be_the_best(evaluated):
    trainer, played = evaluated([1.0, 7.0])
    assert trainer.finish()["evaluation"]["mean"] == 7.0
    assert len(read_jsonl(trainer.run_dir / "evaluations.jsonl")) == 1  # of those by eval_interval
    assert is_best(trainer, played[1])


def test_without_eval_interval_the_training_return_chooses(tiny, finish):
    config = tiny(transport="serial", checkpoint_interval=64, eval_episodes=1)
    trainer, _ = finish(dataclasses.replace(config, total_steps=320))
    best = checkpoint.find(trainer.run_dir, "best")
    assert checkpoint.load_trainer(best)["best_return"] == trainer.progress.best_return

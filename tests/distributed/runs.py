"""Whole runs of several learners in threads."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import headrace as hr
from headrace.rundir.files import read_jsonl
from tests.distributed.threads import ThreadGroup, run_learners

ENVS, FRAGMENT = 12, 8
STEPS = ENVS * FRAGMENT  # of an update, including reset steps
ALGOS = {
    "ppo": hr.PPO(epochs=2, minibatches=2),
    "impala": hr.IMPALA(),
    "impala-replay": hr.IMPALA(replay_fraction=0.5, replay_capacity=60),
    "impact": hr.IMPACT(buffer_size=3, passes=2, kl_coef=0.1, kl_target=1e-3),
}


@dataclasses.dataclass
class Run:
    """Final state of one learner."""

    trainer: hr.Trainer
    results: list[hr.Result]
    weights: Tensor


def train(
    config: hr.Config,
    begin: Callable[[hr.Trainer], None] = lambda trainer: None,
    watch: Callable[[list[hr.Trainer], hr.Result], None] = lambda trainers, result: None,
) -> list[Run]:
    """Train with all learners of a run.

    Args:
        begin: called by each learner before it trains, one after the other.
        watch: called by rank 0 with all trainers and each result.
    """
    trainers: list[hr.Trainer] = []

    def work(group: ThreadGroup) -> Run:
        with group.in_turn():
            trainer = hr.Trainer(config, notify=lambda text: None, group=group)
            trainers.append(trainer)
            begin(trainer)
        group.gather_objects(None)  # build all before any trains: building seeds torch
        results = []
        with contextlib.closing(trainer):
            for result in trainer:
                results.append(result)
                watch(trainers, result)
        return Run(trainer, results, weights(trainer))

    return run_learners(config.num_learners, work)


def weights(trainer: hr.Trainer) -> Tensor:
    """Return a copy of all parameters and buffers, ``[N]`` float64."""
    values = trainer.policy.state_dict().values()
    return torch.cat([value.reshape(-1).double() for value in values])


def check_together(runs: list[Run]) -> None:
    """Check that all learners have the same update and bits, and only rank 0 has results."""
    first = runs[0]
    for run in runs:
        assert run.trainer.updates == first.trainer.updates
        assert run.trainer.env_steps == first.trainer.env_steps
        assert torch.equal(run.weights, first.weights)
    assert first.results
    assert all(run.results == [] for run in runs[1:])


def iterations(run_dir: str | Path, rank: int) -> list[dict[str, Any]]:
    return read_jsonl(Path(run_dir) / "iterations" / f"rank_{rank}.jsonl")

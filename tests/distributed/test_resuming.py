"""Checkpoints of several learners resume bit for bit, and with another number of learners."""

from __future__ import annotations

import collections
import copy
import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.algos.replay import concatenate
from headrace.api import resume_config
from headrace.errors import CheckpointError
from headrace.rundir.files import read_jsonl
from headrace.types import Batch
from tests.distributed.runs import ALGOS, STEPS, check_together, train, weights
from tests.tries import few_named

FEW = ["impala-replay", "impact"]  # which remember more than weights
RESUMED = [("ppo", 3), ("impala-replay", 1), ("impala-replay", 3), ("impact", 3)]


class Crash(Exception):
    """Stops a run at once, as a dead process does, without a checkpoint."""


def columns(batches: list[Batch | None]) -> Tensor | None:
    """Return the identity of each column of several learners' batches: ``[P, T, B]``."""
    known = [batch for batch in batches if batch is not None]
    if not known:
        return None
    joined = concatenate(known)
    parts = [joined.reward, joined.log_prob, *joined.targets.values(), joined.obs[:-1].sum(-1)]
    return torch.stack([x.reshape(*joined.valid.shape, -1).sum(-1) for x in parts])


def held(states: list[dict[str, Any]]) -> list[Tensor | None]:
    """Return the columns of all learners' memories: replay's sorted, IMPACT's by slot."""
    if "replay" in states[0]:
        found = columns([Batch(**s["replay"]["columns"]) for s in states])
        assert found is not None
        return [found[:, :, found[1, 0].argsort()]]
    if "buffer" in states[0]:
        slots = zip(*(s["buffer"]["batches"] for s in states), strict=True)
        return [columns([None if b is None else Batch(**b) for b in slot]) for slot in slots]
    return []


@dataclasses.dataclass
class Loaded:
    """State of a learner when it resumes."""

    own: dict[str, Any]
    shared: dict[str, Any]
    returns: list[float]
    num_episodes: int


@pytest.mark.parametrize(
    ("algo", "size"),
    [
        pytest.param(
            algo, size, id=f"{size}-{name}",
            marks=() if (name, size) in RESUMED else pytest.mark.full,
        )
        for name, algo in ALGOS.items()
        for size in (1, 3)
    ],
)  # fmt: skip
def test_another_number_of_learners_goes_on_from_a_checkpoint(several, algo, size):
    runs = train(several(2, algo=algo, total_steps=480))
    before, last = runs[0].trainer, runs[0].results[-1]
    loaded: list[Loaded] = []

    def begin(trainer: hr.Trainer) -> None:
        assert torch.equal(weights(trainer), runs[0].weights)
        own, shared = trainer.learner.own_state(), trainer.learner.state_dict()
        returns, count = list(trainer.episodes.returns), trainer.episodes.count
        loaded.append(Loaded(copy.deepcopy(own), copy.deepcopy(shared), returns, count))

    settings: dict[str, Any] = {"num_learners": size, "total_steps": 960, "log_interval_s": 0.0}
    resumed = train(resume_config(before.run_dir, **settings), begin)

    old = held([run.trainer.learner.own_state() for run in runs])
    new = held([one.own for one in loaded])
    assert len(old) == len(new) == {"replay": 1, "buffer": 3}.get(next(iter(loaded[0].own), ""), 0)
    assert all(a is None if b is None else torch.equal(a, b) for a, b in zip(new, old, strict=True))
    assert not old or any(x is not None for x in old)
    optimizer = before.learner.state_dict()["optimizer"]
    for one in loaded:
        theirs = one.shared["optimizer"]
        assert all(torch.equal(theirs[k], optimizer[k]) for k in ("mean", "square", "step"))
    returns = [x for run in runs for x in run.trainer.episodes.returns]
    known = collections.Counter(x for one in loaded for x in one.returns)
    assert known == collections.Counter(returns)
    assert sum(one.num_episodes for one in loaded) == last.episodes == len(returns)

    check_together(resumed)
    first, trainer = resumed[0].results[0], resumed[0].trainer
    assert first.updates == last.updates + 1
    assert last.env_steps <= first.env_steps <= last.env_steps + STEPS
    assert first.episodes >= last.episodes
    assert trainer.env_steps >= 960
    assert trainer.learner.num_steps > before.learner.num_steps
    assert not torch.equal(resumed[0].weights, runs[0].weights)


def test_memories_that_cannot_be_shared_out_are_refused(several):
    algo = hr.IMPACT(buffer_size=3, passes=2)
    before = train(several(2, algo=algo, total_steps=480, envs_per_actor=4))[0].trainer
    again = resume_config(before.run_dir, num_learners=3, envs_per_actor=6, total_steps=960)
    with pytest.raises(CheckpointError, match="batch of 4 columns can't be shared out evenly to 3"):
        train(again)


@pytest.mark.parametrize("algo", few_named(ALGOS, FEW))
def test_a_crashed_deterministic_run_ends_with_the_weights_of_one_that_did_not(several, algo):
    shape: dict[str, Any] = {
        "algo": algo, "deterministic": True, "checkpoint_interval": 200,
        "eval_interval": 200, "eval_episodes": 2,
    }  # fmt: skip
    whole = train(several(2, "whole", **shape))
    crashed_at: list[hr.Result] = []

    def watch(trainers: list[hr.Trainer], result: hr.Result) -> None:
        if result.env_steps >= 300:
            crashed_at.append(result)
            raise Crash

    with pytest.raises(Crash):
        train(several(2, "crashed", **shape), watch=watch)
    folder = Path(several(2, "crashed").run_dir)
    resumed = train(resume_config(folder, log_interval_s=0.0))
    check_together(resumed)
    assert torch.equal(resumed[0].weights, whole[0].weights)
    assert resumed[0].trainer.updates == whole[0].trainer.updates
    assert resumed[0].results[0].updates <= crashed_at[0].updates  # some were done twice
    check_same_files(folder, whole[0].trainer.run_dir)


def check_same_files(ours: Path, theirs: Path) -> None:
    """Check that the files of both runs are equal, except for times."""
    names = ("env_steps", "update", "charts/updates", "losses/policy_loss", "lag/mean")
    names += ("return_mean", "return_std", "episodes", "steps", "rank", "approx_kl", "entropy")
    names += ("charts/episodic_return",)
    files = ("metrics.jsonl", "evaluations.jsonl", "returns.jsonl", "iterations/rank_0.jsonl")
    for file in (*files, "iterations/rank_1.jsonl"):
        tell = [
            [{k: v for k, v in line.items() if k in names} for line in read_jsonl(folder / file)]
            for folder in (ours, theirs)
        ]
        assert tell[0] == tell[1], file
        assert tell[0]
        assert all(len(line) >= 3 for line in tell[0])
        seconds = [line["seconds"] for line in read_jsonl(ours / file)]
        assert seconds == sorted(seconds) or file == "metrics.jsonl"  # there since the start

"""Minibatches of several learners together are minibatches of all data."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

import headrace as hr
from headrace.algos.replay import concatenate
from headrace.learner.learner import Learner
from headrace.nn import Network
from headrace.types import Batch, SingleLearner
from tests.distributed.data import LR, LSTM, UPDATES, make_learner, parameters, part, stream
from tests.distributed.threads import ThreadGroup, run_learners
from tests.distributed.traces import Trace, check_same
from tests.tries import few_of

FEW_UPDATES = 7  # of recurrent networks; fillers repeat after three
SIZES = pytest.mark.parametrize("size", [pytest.param(2, marks=pytest.mark.slow), 3])


def split_by_each(algo: Any, learner: Learner, states: list[Any], batch: Batch) -> list[Batch]:
    """Yield the parts of each of several learners, step by step, side by side.

    Args:
        states: of the algorithm, one per learner.
    """
    size = len(states)
    plain = algo.per_learner(size)
    normalized = getattr(algo, "normalize_advantage", False)
    if normalized:
        plain = dataclasses.replace(plain, normalize_advantage=False)
    parts = []
    for rank, state in enumerate(states):
        mine = part(batch, rank, size)
        parts.append(
            list(plain.batches(learner.policy, lambda mine=mine: mine, state, SingleLearner()))
        )
    steps = [concatenate(list(step)) for step in zip(*parts, strict=True)]
    if normalized:
        for step in steps:
            advantage = step.targets["advantage"]
            real = advantage[step.valid]
            step.targets["advantage"] = (advantage - real.mean()) / (real.std() + 1e-8)
    return steps


def train_on_parts(algo: Any, network: Network | None, size: int) -> Trace:
    """Run one learner on the parts of ``size`` learners."""
    learner = make_learner(algo, network)
    seeded = [make_learner(algo.per_learner(size), network).state for _ in range(size)]
    batches, trace = stream(core_size=0 if network is None else network.core_size), Trace()
    for _ in range(UPDATES if network is None else FEW_UPDATES):
        for step in split_by_each(algo, learner, seeded, next(batches)):
            trace.metrics.append(learner.step(step, LR))
        trace.values.append(parameters(learner))
    return trace


MINIBATCHES = {
    "ppo": (hr.PPO(epochs=2, minibatches=4), None),
    "ppo-plain": (hr.PPO(epochs=2, minibatches=4, normalize_advantage=False), None),
    "ppo-lstm": (hr.PPO(epochs=2, minibatches=4), LSTM),
    "appo": (hr.APPO(epochs=1, minibatches=3, normalize_advantage=True), None),
    # Which columns are replayed depends on the number of learners, as each replays its own.
    "impala-replay": (hr.IMPALA(replay_fraction=0.5, replay_capacity=24), None),
}


@SIZES
@pytest.mark.parametrize(
    "case", few_of(list(MINIBATCHES), ["ppo", "ppo-lstm", "appo", "impala-replay"])
)
def test_a_step_on_everybodys_minibatch_is_one_on_all_of_them_side_by_side(case, size):
    algo, network = MINIBATCHES[case]
    own = algo.per_learner(size)

    def work(group: ThreadGroup) -> Trace:
        with group.in_turn():
            learner = make_learner(own, network, group=group)
        core_size = 0 if network is None else network.core_size
        batches, trace = stream(group.rank, size, core_size=core_size), Trace()
        for _ in range(UPDATES if network is None else FEW_UPDATES):
            for step in own.batches(learner.policy, lambda: next(batches), learner.state, group):
                trace.metrics.append(learner.step(step, LR))
            trace.values.append(parameters(learner))
        return trace

    check_same(run_learners(size, work), train_on_parts(algo, network, size), 1e-10, 1e-8)


def test_each_learner_draws_from_its_own_replay():
    algo = hr.IMPALA(epochs=1, minibatches=1, replay_fraction=0.5, replay_capacity=24)

    def work(group: ThreadGroup) -> set[float]:
        with group.in_turn():
            learner = make_learner(algo.per_learner(2), group=group)
        batches, drawn = stream(group.rank, 2), set()
        for _ in range(10):
            fresh = next(batches)
            (step,) = learner.algorithm.batches(
                learner.policy, lambda fresh=fresh: fresh, learner.state, group
            )
            drawn |= set(step.reward[0, fresh.valid.shape[1] :].tolist())
        return drawn

    one, other = run_learners(2, work)
    assert one
    assert other
    assert not one & other

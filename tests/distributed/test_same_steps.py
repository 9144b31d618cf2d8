"""Several learners with a part of the data each take the steps of one learner with all data."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.learner.gradient_allreduce import GradientAllReduce
from headrace.learner.learner import Learner
from headrace.nn import Network
from headrace.studies.scaling import allreduce
from headrace.types import Batch, SingleLearner
from tests.distributed.data import (
    LR,
    LSTM,
    UPDATES,
    everything,
    fillers,
    make_batch,
    make_learner,
    part,
    stream,
)
from tests.distributed.threads import ThreadGroup, run_learners
from tests.distributed.traces import Trace, check_same

ONE_PART: dict[str, Any] = {"epochs": 2, "minibatches": 1}
SCALED = Network((8,), normalize_observations=True)

CASES: dict[str, tuple[Any, Network | None]] = {
    "ppo": (hr.PPO(**ONE_PART), None),
    "ppo-rmsprop": (hr.PPO(**ONE_PART, optimizer="rmsprop", max_grad_norm=math.inf), None),
    "ppo-value-clip": (hr.PPO(**ONE_PART, value_clip=0.05), None),
    "ppo-penalty": (hr.PPO(**ONE_PART, kl_coef=0.1, kl_target=0.0142), None),
    "ppo-returns": (hr.PPO(**ONE_PART, normalize_returns=True), None),
    "ppo-observations": (hr.PPO(**ONE_PART), SCALED),
    "ppo-lstm": (hr.PPO(**ONE_PART), LSTM),
    "a2c": (hr.A2C(entropy_coef=0.01), None),
    "a2c-rmsprop": (hr.A2C(optimizer="rmsprop", max_grad_norm=0.05), None),
    "impala": (hr.IMPALA(epochs=1, minibatches=1), None),
    "impala-lstm": (hr.IMPALA(epochs=1, minibatches=1, reward_scale=0.5), LSTM),
    "appo": (hr.APPO(epochs=1, minibatches=1), None),
    "appo-epochs": (hr.APPO(**ONE_PART, normalize_advantage=True), None),
    "impact": (hr.IMPACT(buffer_size=2, passes=2), None),
    "impact-penalty": (hr.IMPACT(buffer_size=2, passes=2, kl_coef=0.5, kl_target=7e-5), None),
    "impact-all": (hr.IMPACT(buffer_size=2, passes=2, normalize_returns=True), SCALED),
}
OF_TWO = ("ppo-observations", "impala-lstm", "impact-all")


def sizes(cases: Iterable[str]) -> pytest.MarkDecorator:
    """Three learners in all cases, some with no valid steps; two where it may matter."""
    pairs = [pytest.param(case, 3, id=f"{case}-3") for case in cases]
    for case in cases:
        marks = [] if case in OF_TWO else [pytest.mark.full]
        pairs.append(pytest.param(case, 2, id=f"{case}-2", marks=marks))
    return pytest.mark.parametrize(("case", "size"), pairs)


def train(case: str, group: ThreadGroup | None, dtype: torch.dtype) -> Trace:
    """Run 20 updates on one learner's part of the data."""
    algo, network = CASES[case]
    if group is None:
        learner, rank, size = make_learner(algo, network, dtype), 0, 1
    else:
        with group.in_turn():
            learner = make_learner(algo, network, dtype, group)
        rank, size = group.rank, group.size
    core_size = 0 if network is None or network.core is None else network.core_size
    batches, trace = stream(rank, size, dtype, core_size), Trace()
    for _ in range(UPDATES):
        trace.metrics.append(learner.update(lambda: next(batches), LR))
        trace.values.append(everything(learner))
        if "penalty" in learner.state:
            trace.coefs.append(learner.state["penalty"].coef)
    trace.num_steps = learner.num_steps
    learner.close()
    return trace


@functools.cache
def alone(case: str, dtype: torch.dtype) -> Trace:
    return train(case, None, dtype)


@sizes(CASES)
def test_several_learners_take_the_steps_of_one(case, size):
    ours = run_learners(size, lambda group: train(case, group, torch.float64))
    check_same(ours, alone(case, torch.float64), 1e-10, 1e-8)


@sizes(["ppo", "ppo-rmsprop", "impala", "impact-all"])
def test_in_float32_they_differ_by_rounding_only(case, size):
    # The optimiser divides by sqrt(g^2) + 1e-5, which enlarges a rounding of g by up to 1e5.
    ours = run_learners(size, lambda group: train(case, group, torch.float32))
    check_same(ours, alone(case, torch.float32), 2e-4, 2e-3)


@pytest.mark.parametrize("case", CASES)
def test_the_runs_that_are_compared_learn_something(case):
    one = alone(case, torch.float64)
    for before, after in zip(one.values, one.values[1:], strict=False):
        assert (after - before).abs().max() > 1e-4
    if "penalty" in case:
        ratios = {b / a for a, b in zip(one.coefs, one.coefs[1:], strict=False)}
        assert ratios >= {2.0, 1.0}, "the penalty should change"


def test_the_learners_have_unequally_many_valid_steps_and_sometimes_none():
    counts = [
        [int(part(make_batch(update), rank, size).valid.sum()) for rank in range(size)]
        for update in range(UPDATES)
        for size in (2, 3)
    ]
    assert sum(0 in row for row in counts) >= 10
    assert all(len(set(row)) > 1 for row in counts)
    assert fillers(0).unique().numel() == 2


def test_a_batch_without_any_valid_step_is_no_accident():
    algo = hr.PPO(**ONE_PART, normalize_returns=True)

    def work(group: ThreadGroup) -> tuple[Tensor, dict[str, float]]:
        with group.in_turn():
            learner = make_learner(algo, SCALED, group=group)
        batch = part(make_batch(1), group.rank, group.size)
        batch.first[:] = True
        batch.valid[:] = False
        metrics = learner.update(lambda: batch, LR)
        return everything(learner), metrics

    for values, metrics in run_learners(2, work):
        assert values.isfinite().all()
        assert metrics["grad_norm"] == 0.0
        assert all(math.isfinite(value) for value in metrics.values())


# -- ends of updates, metrics, exchanges ----------------------------------------------------------


def far_off(batch: Batch, columns: slice, by: float) -> Batch:
    """Use another behaviour policy for some columns, with a large KL."""
    batch.log_prob[:, columns] += by
    return batch


@pytest.mark.parametrize(
    ("kl_stop", "num_steps"), [(0.3, 1), (3.0, 8)], ids=["one has too much", "all together not"]
)
def test_an_update_ends_at_the_same_step_for_all_by_the_kl_of_all(kl_stop, num_steps):
    algo = hr.PPO(epochs=4, minibatches=2, kl_stop=kl_stop)

    def work(group: ThreadGroup) -> tuple[int, list[float]]:
        with group.in_turn():
            learner = make_learner(algo, group=group)
        batch = part(far_off(make_batch(2), slice(0, 4), 5.0), group.rank, group.size)
        learner.update(lambda: batch, 1e-5)
        return learner.num_steps, [own["approx_kl"] for own in learner.own]

    found = run_learners(3, work)
    assert [steps for steps, _ in found] == [num_steps] * 3
    assert all(kl > 3.0 for kl in found[0][1])
    assert all(kl < 0.3 for _, kls in found[1:] for kl in kls)


def test_a_learners_own_metrics_are_those_of_its_data_and_average_to_everybodys():
    algo = hr.PPO(epochs=1, minibatches=1, normalize_advantage=False)

    def work(group: ThreadGroup) -> tuple[dict[str, float], dict[str, float], int]:
        with group.in_turn():
            learner = make_learner(algo, group=group)
        batch = part(make_batch(1), group.rank, group.size)
        metrics = learner.update(lambda: batch, 0.0)
        return metrics, learner.own[-1], int(batch.valid.sum())

    found = run_learners(3, work)
    for rank, (_, own, _) in enumerate(found):
        one = make_learner(algo)
        expected = one.update(lambda rank=rank: part(make_batch(1), rank, 3), 0.0)
        del expected["grad_norm"]
        assert own == pytest.approx(expected)
    total = sum(count for _, _, count in found)
    for name in ("policy_loss", "value_loss", "entropy", "approx_kl", "clipfrac"):
        mean = sum(own[name] * count for _, own, count in found) / total
        assert found[0][0][name] == pytest.approx(mean, rel=1e-9, abs=1e-12)


def explained_far_from_zero(learner: Learner, dtype: torch.dtype) -> list[float]:
    """Return the explained variance in some updates, for returns about 3000."""
    torch.nn.init.constant_(learner.policy.value_head.bias, 3000.0)
    found = []
    for update in range(4):
        batch = part(make_batch(update, dtype), learner.group.rank, learner.group.size)
        batch.terminated[:], batch.reward = True, batch.reward + 3000.0
        found.append(learner.update(lambda batch=batch: batch, 0.0)["explained_variance"])
    return found[1:]  # where the returns are is known from the first update on


def test_the_explained_variance_of_returns_far_from_zero_survives_float32():
    def work(group: ThreadGroup) -> list[float]:
        with group.in_turn():
            learner = make_learner(hr.A2C(), dtype=torch.float32, group=group)
        return explained_far_from_zero(learner, torch.float32)

    wanted = explained_far_from_zero(make_learner(hr.A2C()), torch.float64)
    for found in run_learners(2, work):
        assert found == pytest.approx(wanted, abs=0.01)


@pytest.mark.parametrize(
    ("algo", "network", "per_update"),
    [
        (hr.A2C(), None, 1),
        (hr.IMPALA(epochs=1), None, 4),
        (hr.PPO(epochs=2, minibatches=4), None, 9),
        (hr.PPO(epochs=2, minibatches=4, normalize_advantage=False), None, 8),
        (hr.PPO(epochs=2, minibatches=4, normalize_returns=True), SCALED, 10),
        (hr.IMPACT(buffer_size=2, passes=2), None, 1),
    ],
    ids=["a2c", "impala", "ppo", "ppo-plain", "ppo-scaled", "impact"],
)
def test_there_is_one_exchange_per_step_one_for_all_advantages_and_one_for_all_moments(
    algo, network, per_update
):
    def work(group: ThreadGroup) -> int:
        with group.in_turn():
            learner = make_learner(algo, network, group=group)
        batches = stream(group.rank, 2)
        for _ in range(4):
            learner.update(lambda: next(batches), LR)
        return len(group.clock.waits)

    assert run_learners(2, work) == [4 * per_update] * 2
    config = hr.Config(algo=algo, network=network or Network(), scale_free=False)
    told_at_the_end = 1
    modelled = len(allreduce.messages(config, 1000)) + len(allreduce.rows_told(config))
    assert modelled - told_at_the_end == per_update


class Multiplied(SingleLearner):
    """Run several learners on equal data."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def sum(self, values: Tensor) -> Tensor:
        return values * self.size


@pytest.mark.parametrize(
    ("count", "size"), [(2**22 + 1, 5), (2**24 - 1, 1001), (2**30 + 4095, 63), (4095, 4096), (0, 2)]
)
def test_counts_that_float32_cannot_hold_add_up_exactly(count, size):
    names = ("entropy", "target_sum", "target_sq", "error_sum", "error_sq")
    sums = {name: 1.5 * i for i, name in enumerate(names, start=1)}
    allreduce = GradientAllReduce(Multiplied(size))
    summed, metrics, total = allreduce.added_up(torch.arange(5.0), sums, count)
    assert total == count * size
    assert torch.equal(summed, torch.arange(5.0) * size)
    assert metrics == {name: value * size for name, value in sums.items()}

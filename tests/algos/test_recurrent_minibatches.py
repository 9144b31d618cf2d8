"""Sizes of minibatches; those of a recurrent policy are whole columns, with the actor's state."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import headrace as hr
from headrace.algos import IMPACT
from headrace.algos.common import policy_outputs
from headrace.algos.minibatches import shuffled
from headrace.learner.learner import Learner
from headrace.ops.distributions import Categorical
from headrace.types import Batch, SingleLearner
from tests.learner.test_learner import make_batch, make_policy


class Recurrent(torch.nn.Module):
    """A core whose state decays and adds each observation, and is reset with each episode."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.distribution, self.popart, self.action_bounds = Categorical(4), None, None
        self.into = torch.nn.Linear(3, 8, dtype=torch.float64)
        self.heads = torch.nn.Linear(8, 5, dtype=torch.float64)

    def forward(self, obs, first, core):
        (h,), rows = core, []
        for obs_t, first_t in zip(obs, first, strict=True):
            h = torch.tanh(0.9 * torch.where(first_t[:, None], 0.0, h) + self.into(obs_t))
            rows.append(self.heads(h))
        out = torch.stack(rows)
        return out[..., :4], out[..., 4], (h,)

    def values(self, obs, first, core):
        return self(obs, first, core)[1]


def recurrent_batch(policy: Recurrent, columns: int = 10) -> Batch:
    """Return an on-policy batch from a random initial state."""
    batch = make_batch(columns=columns, dtype=torch.float64)
    g = torch.Generator().manual_seed(1)
    batch.core = (torch.randn(columns, 8, generator=g, dtype=torch.float64),)
    with torch.no_grad():
        batch.log_prob = policy_outputs(policy, batch).log_prob
    return batch


@pytest.mark.parametrize(("minibatches", "sizes"), [(3, [4, 3, 3]), (10, [1] * 10), (99, [1] * 10)])
def test_minibatches_of_a_recurrent_policy_are_whole_columns_each_once_a_pass(minibatches, sizes):
    batch = recurrent_batch(Recurrent())
    parts = list(shuffled(batch, 2, minibatches, torch.Generator().manual_seed(0)))
    assert [part.valid.shape for part in parts] == [(12, size) for size in sizes * 2]
    orders = []
    for passed in (parts[: len(sizes)], parts[len(sizes) :]):
        found = torch.cat([part.core[0] for part in passed])
        order = [int((batch.core[0] == one).all(1).nonzero()) for one in found]
        assert sorted(order) == list(range(10))
        assert torch.equal(torch.cat([p.obs for p in passed], 1), batch.obs[:, order])
        assert torch.equal(torch.cat([p.reward for p in passed], 1), batch.reward[:, order])
        orders.append(order)
    assert orders[0] != orders[1]


@pytest.mark.parametrize(
    "algo",
    [
        hr.PPO(epochs=1, minibatches=4, normalize_advantage=False),
        hr.APPO(epochs=1, minibatches=4),
        IMPACT(),
    ],
    ids=["ppo", "appo", "impact"],
)
def test_minibatches_of_a_recurrent_policy_are_on_policy_and_add_up_to_the_batch(algo):
    policy = Recurrent()
    batch, state = recurrent_batch(policy), algo.init(policy)
    parts = list(algo.batches(policy, lambda: batch, state, SingleLearner()))
    sums = [algo.loss(policy, part, state) for part in parts]
    assert sum(int(part.valid.sum()) for part in parts) == int(batch.valid.sum())
    assert sum(metrics["approx_kl"] for _, metrics in sums) < 1e-12
    if isinstance(algo, IMPACT):
        return
    single = dataclasses.replace(algo, epochs=1, minibatches=1)
    state = single.init(policy)
    (whole,) = single.batches(policy, lambda: batch, state, SingleLearner())
    expected, _ = single.loss(policy, whole, state)
    torch.testing.assert_close(sum(loss for loss, _ in sums), expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("algo", [hr.PPO(), hr.PPO(normalize_advantage=False)])
def test_a_batch_of_as_many_steps_as_minibatches_trains_the_policy(algo):
    """The advantage of a single sample would be 0 after normalisation."""
    learner = Learner(make_policy(), algo)
    before = learner.policy.policy_head.weight.clone()
    learner.update(lambda: make_batch(rows=4, columns=4), 1e-3)
    assert learner.num_steps == algo.epochs * (8 if algo.normalize_advantage else 16)
    assert not torch.equal(learner.policy.policy_head.weight, before)

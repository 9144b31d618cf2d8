"""Tests of the distance of action means from the middle of their bounds."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.spaces import Tuple as Both

import headrace as hr
from headrace.learner.action_means import mean_size
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.types import Batch

OBS = Box(-1, 1, (3,))


def batch_of(policy: Policy) -> Batch:
    """Return a batch of 2 steps of 5 environments."""
    obs, first = torch.randn(3, 5, 3), torch.zeros(3, 5).bool()
    with torch.no_grad():
        params = policy(obs, first, policy.initial_core(5))[0][:2]
        noise = policy.distribution.noise((2, 5), None)
        action = policy.distribution.sample(params, noise)
        log_prob = policy.distribution.log_prob(params, action)
    ones = torch.ones(2, 5)
    return Batch(obs, first, action, log_prob, ones, ones.bool(), ones.bool(),
                 policy.initial_core(5), {})  # fmt: skip


def size_of(policy: Policy, batch: Batch) -> float | None:
    return mean_size(policy, batch.obs, batch.first, batch.core)


@pytest.mark.parametrize("core", [None, "gru"])
@pytest.mark.parametrize("scaled", [False, True])
def test_a_mean_at_the_bound_has_size_1(core, scaled):
    network = Network((8,), core=core, core_size=8, scale_actions=scaled)
    low, high = torch.tensor([1.0, -2.0]), torch.tensor([5.0, 2.0])
    policy = Policy(OBS, Box(low.numpy(), high.numpy()), network)
    at = torch.tensor([1.0, -3.0]) if scaled else torch.tensor([5.0, -6.0])
    with torch.no_grad():
        policy.policy_head.weight.zero_()
        policy.policy_head.bias.copy_(at)  # 1 and 3 times as far as the bounds
    assert size_of(policy, batch_of(policy)) == pytest.approx(2.0)


@pytest.mark.parametrize("space", [Discrete(2), Box(-torch.inf, torch.inf, (1,))])
def test_actions_without_bounds_have_no_size(space):
    policy = Policy(OBS, space, Network((8,)))
    assert size_of(policy, batch_of(policy)) is None


@pytest.mark.parametrize("space", [Box(-1, 1, (1,)), Both((Discrete(2), Box(-1, 1, (1,))))])
def test_updates_report_the_size(space):
    policy = Policy(OBS, space, Network((8,), scale_actions=True))
    learner = Learner(policy, hr.APPO(epochs=2, minibatches=1), 1)
    batch = batch_of(policy)
    expected = size_of(policy, batch)
    assert learner.update(lambda: batch, 1e-3)["mean_size"] == pytest.approx(expected)
    learner.close()

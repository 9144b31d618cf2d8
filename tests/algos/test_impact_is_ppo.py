"""IMPACT on fresh on-policy data, with the target updated every N * K steps, is PPO."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

import headrace as hr
from headrace.algos import IMPACT
from headrace.learner.learner import Learner
from headrace.nn import Policy
from headrace.ops import losses
from headrace.ops.returns import gae
from headrace.types import Batch
from tests.algos.test_impact import LR, float64_batch, log_prob_of, weights
from tests.learner.test_learner import make_policy


def on_policy_rounds(policy: Policy, num_rounds: int, size: int) -> Iterator[list[Batch]]:
    """Return ``size`` batches with the policy's log-probabilities at the start of the round."""
    for r in range(num_rounds):
        batches = [float64_batch(100 * r + i) for i in range(size)]
        yield [dataclasses.replace(b, log_prob=log_prob_of(policy, b)) for b in batches]


def impact_rounds(algo: IMPACT, num_rounds: int) -> list[Tensor]:
    learner = Learner(make_policy(torch.float64), algo)
    rounds = on_policy_rounds(learner.policy, num_rounds, algo.buffer_size)
    fresh = (batch for batches in rounds for batch in batches)
    for _ in range(num_rounds * algo.buffer_size * algo.passes):
        learner.update(lambda: next(fresh), LR)
    return weights(learner.policy)


def ppo_by_hand(algo: IMPACT, num_rounds: int) -> list[Tensor]:
    """Run PPO over fixed minibatches in a fixed order, with torch's optimiser."""
    policy = make_policy(torch.float64)
    adam = torch.optim.Adam(policy.parameters(), lr=LR, eps=algo.optimizer_eps)
    for batches in on_policy_rounds(policy, num_rounds, algo.buffer_size):
        targets = []
        for b in batches:
            with torch.no_grad():
                value = policy(b.obs, b.first, ())[1]
            targets.append(gae(*b.stream(value), gamma=algo.gamma, lam=algo.lam))
        for _ in range(algo.passes):
            for b, (advantage, target) in zip(batches, targets, strict=True):
                params, value, _ = policy(b.obs, b.first, ())
                log_prob = policy.distribution.log_prob(params[:-1], b.action)
                entropy = policy.distribution.entropy(params[:-1])
                loss, _ = losses.ppo_clip_loss(log_prob - b.log_prob, advantage, b.valid, algo.clip)
                loss = loss + algo.value_coef * losses.value_loss(value[:-1], target, b.valid)
                loss = loss - algo.entropy_coef * losses.masked_sum(entropy, b.valid)
                adam.zero_grad()
                (loss / b.valid.sum()).backward()
                norm = torch.cat([p.grad.reshape(-1) for p in policy.parameters()]).norm()
                for p in policy.parameters():
                    p.grad *= (algo.max_grad_norm / norm).clamp(max=1.0)
                adam.step()
    return weights(policy)


def headrace_ppo(algo: IMPACT, num_rounds: int) -> list[Tensor]:
    """Run the same with the targets and the loss of ``hr.PPO``."""
    shared = {
        name: getattr(algo, name)
        for name in ("gamma", "lam", "clip", "value_coef", "entropy_coef", "max_grad_norm")
    }
    ppo = hr.PPO(**shared)
    learner = Learner(make_policy(torch.float64), ppo)
    for batches in on_policy_rounds(learner.policy, num_rounds, algo.buffer_size):
        ready = [ppo._with_targets(learner.policy, b) for b in batches]
        for batch in ready * algo.passes:
            learner.step(batch, LR)
    return weights(learner.policy)


@pytest.mark.parametrize("ppo", [ppo_by_hand, headrace_ppo])
@pytest.mark.parametrize("rho", [1.0, 2.0])
@pytest.mark.parametrize(("size", "passes"), [(1, 1), (4, 2), (3, 5)])
@pytest.mark.parametrize("num_rounds", [1, 2])
def test_on_policy_it_leaves_the_same_weights_as_ppo(ppo, rho, size, passes, num_rounds):
    algo = IMPACT(
        buffer_size=size, passes=passes, rho=rho, lam=0.9, clip=0.1, entropy_coef=0.01,
        max_grad_norm=0.3,
    )  # fmt: skip
    start, ours = weights(make_policy(torch.float64)), impact_rounds(algo, num_rounds)
    theirs = ppo(algo, num_rounds)
    for x, y, before in zip(ours, theirs, start, strict=True):
        torch.testing.assert_close(x, y, rtol=1e-8, atol=1e-10)
        assert (x - before).abs().max() > 0.5 * LR

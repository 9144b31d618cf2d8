"""Means of continuous actions stay near the bounds, with the default settings."""

from __future__ import annotations

import pytest
import torch
from gymnasium.spaces import Box

import headrace as hr
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.types import Batch

COLUMNS = 64


def final_mean(algo: hr.Hyperparameters) -> float:
    """Train on episodes of one step whose reward is the clipped action; return the mean."""
    torch.manual_seed(0)
    policy = Policy(Box(-1, 1, (1,)), Box(-1, 1, (1,)), Network((8,), scale_actions=True))
    learner = Learner(policy, algo, 1)
    obs, first = torch.zeros(2, COLUMNS, 1), torch.zeros(2, COLUMNS).bool()
    for _ in range(400):
        with torch.no_grad():
            params = policy(obs, first, ())[0][:1]
            action = policy.distribution.sample(params, torch.randn(1, COLUMNS, 1))
            log_prob = policy.distribution.log_prob(params, action)
        batch = Batch(
            obs=obs, first=first, action=action, log_prob=log_prob,
            reward=action.clamp(-1, 1)[..., 0], terminated=torch.ones(1, COLUMNS).bool(),
            valid=torch.ones(1, COLUMNS).bool(), core=(), targets={},
        )  # fmt: skip
        learner.update(lambda batch=batch: batch, 1e-2)
    learner.close()
    with torch.no_grad():
        return float(policy(obs, first, ())[0][0, 0, 0])


@pytest.mark.parametrize("kind", [hr.IMPALA, hr.APPO, hr.PPO])
def test_means_stay_near_the_bounds_by_default(kind):
    given = {"epochs": 1, "minibatches": 1}
    kept, drifted = final_mean(kind(**given)), final_mean(kind(**given, bounds_coef=0.0))
    assert 0.9 < kept < 2.2
    assert drifted > kept + 1.0

"""Several passes of IMPALA over a batch stay near the policy that acted, with the default clip."""

from __future__ import annotations

import math

import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.types import Batch

ROWS, COLUMNS = 8, 16


def divergence(core: str | None, **settings) -> float:
    """Train on one batch of random rewards; return KL(acting policy || trained policy)."""
    torch.manual_seed(0)
    policy = Policy(Box(-1, 1, (3,)), Discrete(4), Network((16,), core=core, core_size=8))
    learner = Learner(policy, hr.IMPALA(normalize_advantage=True, **settings), 1)
    obs, first = torch.randn(ROWS + 1, COLUMNS, 3), torch.zeros(ROWS + 1, COLUMNS).bool()
    state = policy.initial_core(COLUMNS)
    with torch.no_grad():
        params = policy(obs, first, state)[0][:ROWS]
        action = torch.randint(4, (ROWS, COLUMNS))
        log_prob = policy.distribution.log_prob(params, action)
    batch = Batch(
        obs=obs, first=first, action=action, log_prob=log_prob,
        reward=torch.randn(ROWS, COLUMNS), terminated=torch.zeros(ROWS, COLUMNS).bool(),
        valid=torch.ones(ROWS, COLUMNS).bool(), core=state, targets={},
    )  # fmt: skip
    learner.update(lambda: batch, 1e-2)
    learner.close()
    with torch.no_grad():
        return float(policy.distribution.kl(params, policy(obs, first, state)[0][:ROWS]).mean())


@pytest.mark.parametrize("core", [None, "lstm"])
def test_the_clip_keeps_passes_near_the_acting_policy(core):
    near, far = divergence(core, epochs=20), divergence(core, epochs=20, clip=math.inf)
    assert 0.002 < near < 0.1
    assert far > 3 * near

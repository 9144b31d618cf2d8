"""Observations whose information needs more precision than float32 has."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete

import headrace as hr
from headrace.nn.policy import Policy
from headrace.ops import tree

FREE = Box(-np.inf, np.inf, (2,), np.float64)
INTEGERS = Box(0, 2**62, (2,), np.int64)
CASES = {
    "float64": (FREE, 5.4e6, 0.1),
    "Unix time": (FREE, 1.7e9, 1),
    "int64": (INTEGERS, 1_700_000_000, 1),
    "uint32": (Box(0, 2**32 - 1, (2,), np.uint32), 4_000_000_000, 1),
    "matrix": (Box(-np.inf, np.inf, (2, 1), np.float64), 1e9, 1),
    "part of a Dict": (Dict(speed=Box(-1, 1, (3,)), time=FREE), 1.7e9, 1),
}


def observations(space, offset, unit) -> tuple[object, torch.Tensor]:
    """Return 64 observations ``[64, ...]`` that differ only in the bits ``[64, 2]``."""
    bits = np.random.default_rng(0).integers(0, 2, (64, 2))
    leaf = space["time"] if isinstance(space, Dict) else space
    rows = (bits * unit + np.asarray(offset, leaf.dtype)).astype(leaf.dtype)
    rows = rows.reshape(64, *leaf.shape)
    obs = {"speed": np.zeros((64, 3), np.float32), "time": rows} if leaf is not space else rows
    return tree.map_leaves(torch.as_tensor, obs), torch.as_tensor(bits)


def policy_for(space, obs, **network) -> Policy:
    torch.manual_seed(0)
    policy = Policy(space, Discrete(2), hr.Network(normalize_observations=True, **network))
    policy.take(policy.moments(tree.map_leaves(lambda x: x.unsqueeze(0), obs)))
    return policy


@pytest.mark.parametrize("case", CASES)
def test_what_differs_reaches_the_network_in_full(case):
    space, offset, unit = CASES[case]
    obs, bits = observations(space, offset, unit)
    policy = policy_for(space, obs)
    numbers = policy.torso.numbers(obs)[:, -2:]
    mean, deviation = bits.double().mean(0), bits.double().std(0, correction=0)
    assert numbers.dtype == torch.float32
    torch.testing.assert_close(numbers.double(), (bits - mean) / deviation, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("network", [{}, {"activation": "elu"}, {"core": "lstm"}], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_actors_and_the_learner_compute_the_same(case, network):
    space, offset, unit = CASES[case]
    obs, _ = observations(space, offset, unit)
    policy = policy_for(space, obs, **network)
    first, core = torch.ones(64, dtype=torch.bool), policy.initial_core(64)
    with torch.inference_mode():
        rows = tree.map_leaves(lambda x: x.unsqueeze(0), obs)
        learner = policy(rows, first.unsqueeze(0), core)[0][0]
        with policy.frozen_weights():
            actor, _ = policy.act(obs, first, core)
    torch.testing.assert_close(actor, learner, rtol=1e-5, atol=1e-6)
    assert len(learner.unique(dim=0)) == 4


def test_predict_tells_large_neighbouring_numbers_apart():
    space, offset, unit = CASES["Unix time"]
    obs, _ = observations(space, offset, unit)
    policy = policy_for(space, obs)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.mul_(10)
    chosen, _ = policy.predict(obs.numpy())
    assert len(set(chosen.tolist())) == 2


def test_float32_observations_are_not_widened():
    space = Box(-1, 1, (3,), np.float32)
    policy = policy_for(space, torch.rand(8, 3))
    assert policy.torso.value_dtype is None
    assert policy.torso.numbers(torch.rand(8, 3)).dtype == torch.float32

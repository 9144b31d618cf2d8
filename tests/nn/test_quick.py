"""The quick way of acting is the policy's own, bit for bit, and is left with its block."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import headrace as hr
from headrace.nn import quick as module
from headrace.nn.policy import Policy
from headrace.nn.quick import quick, split
from headrace.ops import tree

ROW = Box(-np.inf, np.inf, (5,), np.float64)
SPACES = {
    "row": ROW,
    "codes": Discrete(7),
    "parts": Dict(a=Box(-1, 1, (2, 2)), b=Discrete(3)),
    "masked": Dict(observation=ROW, action_mask=MultiBinary(3)),
}


def make(space, seed=0, **network):
    torch.manual_seed(seed)
    policy = Policy(space, Discrete(3), hr.Network((16, 8), **network))
    for name, value in policy.state_dict().items():
        if value.dtype.is_floating_point and "square" not in name:
            value.copy_(
                torch.randn_like(value).abs() if "scale" in name else torch.randn_like(value)
            )
    obs = [space.sample() for _ in range(4)]
    inputs = policy.inputs.compose(
        tree.map_leaves(lambda *x: np.stack(x), *obs), None, None, None, np.ones(4, bool)
    )
    if isinstance(inputs, dict) and "action_mask" in inputs:
        inputs["action_mask"] = np.ones_like(inputs["action_mask"])
    return policy, tree.map_leaves(torch.as_tensor, inputs)


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", SPACES)
def test_a_dense_policy_acts_the_same_while_it_stands_still(name, normalize, activation):
    shape = {"activation": activation, "normalize_observations": normalize}
    policy, inputs = make(SPACES[name], **shape)
    first = torch.ones(4, dtype=torch.bool)
    with torch.inference_mode():
        want, _ = policy.act(inputs, first, ())
        with policy.still():
            assert policy._quick is not None
            before = copy.deepcopy(inputs)
            assert torch.equal(policy.act(inputs, first, ())[0], want)
            tree.map_leaves(lambda x, y: torch.testing.assert_close(x, y), inputs, before)
        assert policy._quick is None


@pytest.mark.parametrize("activation", ["tanh", "relu", "elu"])
@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("name", ["row", "masked"])
def test_torsos_side_by_side_say_what_each_says(name, normalize, activation):
    policies = []
    for seed in range(3):
        policy, inputs = make(
            SPACES[name], seed, activation=activation, normalize_observations=normalize
        )
        policies.append(policy)
    first, *others = (quick(policy.torso) for policy in policies)
    with torch.inference_mode():
        found = first.beside(others, inputs, [1, 2, 1])
        each = zip(policies, split(inputs, [1, 2, 1]), strict=True)
        want = torch.cat([policy.torso(rows) for policy, rows in each])
    torch.testing.assert_close(found, want)


def test_weights_that_changed_between_two_blocks_count_and_so_do_gradients():
    policy, inputs = make(ROW)
    first = torch.ones(4, dtype=torch.bool)
    with policy.still():
        assert policy.act(inputs, first, ())[0].requires_grad
    with torch.no_grad():
        for p in policy.parameters():
            p.data = p + 0.5
        want, _ = policy.act(inputs, first, ())
        with policy.still():
            assert torch.equal(policy.act(inputs, first, ())[0], want)


def test_a_core_is_given_what_the_slow_way_gives_it():
    policy, inputs = make(ROW, core="lstm", core_size=4)
    first, core = torch.ones(4, dtype=torch.bool), policy.initial_core(4)
    with torch.inference_mode():
        want = policy.act(inputs, first, core)
        with policy.still():
            got = policy.act(inputs, first, core)
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(got[1][name], want[1][name]) for name in want[1])


def test_only_torsos_of_dense_layers_have_a_quick_way():
    image = Box(0, 255, (36, 36, 1), np.uint8)
    assert quick(make(image)[0].torso) is None
    assert quick(make(Dict(image=image, row=ROW))[0].torso) is None
    core = {"core": "gru", "core_size": 4, "previous_action_reward": True}
    assert quick(make(ROW, **core)[0].torso) is None
    assert quick(make(ROW, torso=torch.nn.Linear(5, 3).double())[0].torso) is None


def test_a_broken_copy_is_rejected(monkeypatch):
    policy, inputs = make(ROW, normalize_observations=True)
    with torch.inference_mode():
        monkeypatch.setattr(module.QuickTorso, "_normalized", lambda self, x: x.float())
        want, _ = policy.act(inputs, torch.ones(4, dtype=torch.bool), ())
        with policy.still():
            got, _ = policy.act(inputs, torch.ones(4, dtype=torch.bool), ())
    assert not torch.equal(got, want)

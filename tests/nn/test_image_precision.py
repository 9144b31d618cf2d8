from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from torch import nn

import headrace as hr
from headrace.nn.image_precision import bfloat16_modules, memory_format
from headrace.ops import tree

IMAGE = Box(0, 255, (2, 21, 21), np.uint8)
BOTH = Dict({"image": IMAGE, "speed": Box(-1.0, 1.0, (3,))})


def make_policy(space=IMAGE, conv="impala_shallow", **network) -> hr.Policy:
    torch.manual_seed(0)
    policy = hr.Policy(space, Discrete(4), hr.Network(conv=conv, **network))
    with torch.no_grad():
        policy.policy_head.weight.mul_(100.0)  # logits as far apart as trained ones
    return policy


def inputs_of(policy, num: int = 6, rows: tuple[int, ...] = ()):
    policy.inputs.features_space.seed(1)
    obs = [policy.inputs.features_space.sample() for _ in range(num)]
    stacked = tree.map_leaves(lambda *x: torch.as_tensor(np.stack(x)), *obs)
    return tree.map_leaves(lambda x: x.unflatten(0, (*rows, -1)), stacked) if rows else stacked


def act(policy, inputs) -> torch.Tensor:
    num = len(tree.leaves(inputs)[0])
    with torch.inference_mode():
        return policy.act(inputs, torch.zeros(num, dtype=torch.bool), policy.initial_core(num))[0]


@pytest.mark.parametrize("conv", ["impala_shallow", "impala_deep"])
@pytest.mark.parametrize("space", [IMAGE, BOTH, Box(0, 255, (21, 20, 2), np.uint8)])
def test_bfloat16_says_nearly_what_float32_says_in_float32(space, conv):
    policy = make_policy(space, conv)
    inputs = inputs_of(policy)
    exact = act(policy, inputs)
    policy.compute_in("bfloat16")
    assert policy.precision == "bfloat16"
    near = act(policy, inputs)
    difference = (near - exact).abs().max() / exact.abs().max()
    assert near.dtype == torch.float32
    assert 0 < difference < 0.03
    policy.compute_in("float32")
    assert torch.equal(act(policy, inputs), exact)


@pytest.mark.parametrize("conv", ["impala_shallow", "impala_deep"])
def test_weights_that_stand_still_are_cast_once_and_those_that_moved_again(conv):
    policy = make_policy(conv=conv)
    policy.compute_in("bfloat16")
    inputs = inputs_of(policy)
    for _ in range(2):
        fresh = act(policy, inputs)
        with policy.frozen_weights():
            once = act(policy, inputs)
            with torch.no_grad():
                policy.torso.parts[0].convolutions.layers[0].weight.mul_(1.5)
            assert torch.equal(act(policy, inputs), once)
        torch.testing.assert_close(once, fresh, rtol=0, atol=0.02 * float(fresh.abs().max()))
        assert not torch.allclose(act(policy, inputs), once, rtol=0.05)


def test_a_policy_that_acted_in_inference_mode_can_act_outside_of_it():
    policy = make_policy()
    policy.compute_in("bfloat16")
    inputs = inputs_of(policy)
    with torch.inference_mode(), policy.frozen_weights():
        inside = act(policy, inputs)
    with policy.frozen_weights():
        assert torch.equal(act(policy, inputs), inside)
    with pytest.raises(RuntimeError, match="an error inside"), policy.frozen_weights():
        raise RuntimeError("an error inside")
    assert not any(part._frozen for part in bfloat16_modules(policy))


@pytest.mark.parametrize("space", [IMAGE, BOTH])
def test_gradients_in_bfloat16_are_float32s_to_a_percent_and_are_kept_in_float32(space):
    policy = make_policy(space)
    inputs = inputs_of(policy, 64, rows=(8,))
    found = []
    for precision in ("float32", "bfloat16"):
        policy.compute_in(precision)
        params, value, _ = policy(inputs, torch.zeros(8, 8, dtype=torch.bool), ())
        loss = params.log_softmax(2)[..., 0].sum() + value.square().sum()
        gradients = torch.autograd.grad(loss, list(policy.parameters()))
        assert {g.dtype for g in gradients} == {torch.float32}
        found.append(torch.cat([g.flatten() for g in gradients]))
    assert torch.cosine_similarity(*found, dim=0) > 0.999
    assert not torch.equal(*found)


def test_numbers_without_images_are_float32_whatever_is_asked():
    policy = make_policy(Box(-1.0, 1.0, (3,)))
    inputs = inputs_of(policy)
    exact = act(policy, inputs)
    policy.compute_in("bfloat16")
    assert torch.equal(act(policy, inputs), exact)
    assert policy.precision == "float32"


def test_copies_have_their_policys_precision_and_weights_of_their_own():
    policy = make_policy()
    names = list(policy.state_dict())
    policy.compute_in("bfloat16")
    with policy.frozen_weights():
        act(policy, inputs_of(policy))
    assert list(policy.state_dict()) == names
    for copied in (copy.deepcopy(policy), pickle.loads(pickle.dumps(policy))):
        assert copied.precision == "bfloat16"
        assert len(pickle.dumps(copied)) < 1.1 * len(pickle.dumps(make_policy()))
        inputs = inputs_of(policy)
        with torch.no_grad():
            copied.torso.parts[0].convolutions.layers[0].weight.zero_()
            copied.torso.parts[0].convolutions.layers[0].bias.zero_()
        with copied.frozen_weights(), policy.frozen_weights():
            assert not torch.allclose(act(copied, inputs), act(policy, inputs))
    assert make_policy().to(torch.float64).value_head.weight.dtype == torch.float64


class Looks(nn.Module):
    """A custom torso that records the dtype of its convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(2, 4, 21)
        self.seen: list[torch.dtype] = []

    def forward(self, obs):
        x = self.layer(obs.float() / 255.0)
        self.seen.append(x.dtype)
        return x.flatten(1)


def test_an_own_torso_computes_under_autocast_and_its_features_are_float32():
    policy = hr.Policy(IMAGE, Discrete(4), hr.Network(torso=Looks()))
    policy.compute_in("bfloat16")
    inputs = inputs_of(policy)
    with policy.frozen_weights():
        features = policy.torso(inputs)
    assert policy.torso.module.seen[-1] == torch.bfloat16
    assert features.dtype == torch.float32


@pytest.mark.parametrize("conv", ["nature", "impala_deep"])
def test_the_order_in_memory_changes_no_feature(conv):
    policy = make_policy(Box(0, 255, (4, 36, 36), np.uint8), conv)
    inputs = inputs_of(policy)
    image = policy.torso.parts[0]
    results = [
        image.convolutions(inputs.to(torch.float32, memory_format=order))
        for order in (torch.contiguous_format, torch.channels_last)
    ]
    largest = float(results[0].detach().abs().max())
    torch.testing.assert_close(*results, rtol=0, atol=1e-5 * largest)


def test_channels_come_last_where_that_is_faster():
    cpu, gpu, last = torch.device("cpu"), torch.device("cuda"), torch.channels_last

    def rule(dtype, device, residual, learns):
        with torch.set_grad_enabled(learns):
            return memory_format(dtype, device, residual) == last

    full, half = torch.float32, torch.bfloat16
    assert rule(full, cpu, residual=False, learns=True)
    assert not rule(full, cpu, residual=False, learns=False)
    assert not rule(half, cpu, residual=False, learns=True)
    assert all(rule(x, cpu, residual=True, learns=y) for x in (full, half) for y in (True, False))
    assert rule(half, gpu, residual=False, learns=True)
    assert not rule(full, gpu, residual=True, learns=True)


def test_cast_weights_have_their_channels_last_in_acting_but_not_in_learning():
    policy = make_policy(conv="impala_deep")  # others are packed for acting
    policy.compute_in("bfloat16")
    part = policy.torso.parts[0].bfloat16_call
    for learns in (True, False, True, False):  # of one copy, which is written to again
        with part.frozen_weights(learns):
            kernels = [half for _, half in part.stand_ins() if half.ndim == 4]
        assert kernels
        assert all(x.is_contiguous(memory_format=torch.channels_last) != learns for x in kernels)


def test_images_are_given_to_convolutions_in_the_order_of_the_rule():
    policy, seen = make_policy(), []
    policy.torso.parts[0].convolutions.register_forward_pre_hook(lambda _, x: seen.append(x[0]))
    inputs = inputs_of(policy)
    policy.torso(inputs)
    act(policy, inputs)
    last = torch.channels_last
    assert [x.is_contiguous(memory_format=last) for x in seen] == [True, False]
    expected = inputs.float()
    assert all(torch.equal(x, expected) for x in seen)
    assert inputs.dtype == torch.uint8  # and it is as it was

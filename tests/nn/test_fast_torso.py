"""Fast inference paths match the policy, and are left with their block."""

from __future__ import annotations

import copy
import itertools
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary

import headrace as hr
from headrace.nn import fast_torso as module
from headrace.nn.fast_torso import fast_torso, split
from headrace.nn.policy import Policy
from headrace.ops import tree

ROW = Box(-np.inf, np.inf, (5,), np.float64)
SPACES = {
    "row": ROW,
    "codes": Discrete(7),
    "parts": Dict(a=Box(-1, 1, (2, 2)), b=Discrete(3)),
    "masked": Dict(observation=ROW, action_mask=MultiBinary(3)),
}


def make(space, seed=0, actions=None, **network):
    torch.manual_seed(seed)
    policy = Policy(space, actions or Discrete(3), hr.Network((16, 8), **network))
    for name, value in policy.state_dict().items():
        if value.dtype.is_floating_point and "square" not in name:
            value.copy_(
                torch.randn_like(value).abs() if "scale" in name else torch.randn_like(value)
            )
    space.seed(seed)
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
        with policy.frozen_weights():
            assert policy._fast_torso is not None
            assert (policy._numpy_policy is not None) == (name == "row" and activation != "elu")
            before = copy.deepcopy(inputs)
            assert torch.equal(policy._fast_torso(inputs), policy.torso(inputs))
            torch.testing.assert_close(policy.act(inputs, first, ())[0], want)
            policy._numpy_policy = None
            assert torch.equal(policy.act(inputs, first, ())[0], want)
            tree.map_leaves(lambda x, y: torch.testing.assert_close(x, y), inputs, before)
        assert (policy._fast_torso, policy._numpy_policy) == (None, None)


def check_few_rows(module) -> None:
    """Compare with the same layers in float64."""
    boxes = Box(-1, 1, (2,)), Discrete(4)
    for actions, activation, dtype in itertools.product(
        boxes, ("tanh", "relu"), (np.float32, np.float64, np.int64)
    ):
        space = Box(-90, 90, (5,), dtype)
        policy, inputs = make(
            space, 3, actions, activation=activation, normalize_observations=dtype != np.float32
        )
        policy.torso.mlp[0].weight.data[0, 0] = 1e-3  # not all of them act beyond the bends
        if policy.torso.normalizer is not None:
            policy.torso.normalizer.scale.fill_(0.2)  # some beyond the limit, some not
        twin = copy.deepcopy(policy).double()
        with torch.inference_mode():
            few = module.numpy_policy(policy, module.fast_torso(policy.torso))
            want, _ = twin.act(inputs, torch.ones(4, dtype=torch.bool), ())
            torch.testing.assert_close(few(inputs).double(), want, rtol=2e-4, atol=2e-4)
            assert few(inputs).dtype == torch.float32
            with torch.no_grad():
                for p in policy.parameters():
                    p.mul_(0.5)  # of weights it has views
            again, _ = policy.act(inputs, torch.ones(4, dtype=torch.bool), ())
            torch.testing.assert_close(few(inputs), again, rtol=2e-4, atol=2e-4)


def test_few_rows_pass_by_numpy():
    check_few_rows(module)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("x = np.subtract(x, center", "x = np.add(x, center"),
        ("x *= scale", "x /= scale"),
        ("-limit, out=x), limit, out=x)", "-limit, out=x), 99.0, out=x)"),
        ("x += hidden_bias", "pass"),
        ("x = self._activated(x)", "x = np.maximum(x, 0.0, out=x)"),
        ("np.add(x @ weight, bias", "np.subtract(x @ weight, bias"),
        ("y[:, num:] = self._free", "y[:, num:] = 0.0"),
        ("x.detach().numpy()", "x.detach().numpy().copy()"),
    ],
)
def test_a_broken_way_for_few_rows_is_rejected(old, new):
    source = Path(module.__file__).read_text()
    assert source.count(old) == 1
    broken = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), "broken", "exec"), broken)
    with pytest.raises(AssertionError):
        check_few_rows(SimpleNamespace(**broken))


def test_more_rows_pass_by_torch_bit_for_bit():
    policy, inputs = make(ROW)
    with torch.inference_mode(), policy.frozen_weights():
        most = policy._numpy_policy.most_rows
        assert most == (1 << 18) // (16 * 8)
        rows = inputs[:1].expand(most + 1, -1)
        want, _ = policy.act(rows, torch.ones(len(rows), dtype=torch.bool), ())
        policy._numpy_policy = None
        found, _ = policy.act(rows, torch.ones(len(rows), dtype=torch.bool), ())
    assert torch.equal(found, want)


@pytest.mark.parametrize("normalize", [False, True])
def test_what_isnt_finite_warns_nobody_and_stays_so(normalize):
    policy, inputs = make(ROW, normalize_observations=normalize)
    inputs[0, 0], inputs[1, 0], inputs[2, 0] = torch.nan, torch.inf, 1e300
    first = torch.ones(4, dtype=torch.bool)
    with torch.inference_mode(), policy.frozen_weights(), warnings.catch_warnings():
        warnings.simplefilter("error")
        found, _ = policy.act(inputs, first, ())
        policy._numpy_policy = None
        want, _ = policy.act(inputs, first, ())
    torch.testing.assert_close(found, want, equal_nan=True)


def test_only_float32_without_masks_and_cores_has_a_way_for_few_rows():
    for space, network in (
        (SPACES["masked"], {}),
        (SPACES["codes"], {}),
        (ROW, {"core": "lstm", "core_size": 4}),
        (ROW, {"activation": "elu"}),
    ):
        policy, _ = make(space, **network)
        with policy.frozen_weights():
            assert policy._numpy_policy is None
    policy, _ = make(ROW)
    with policy.double().frozen_weights():
        assert policy._numpy_policy is None
    with policy.float().frozen_weights(learns=True):
        assert policy._numpy_policy is None
    with policy.frozen_weights():
        assert policy._numpy_policy is not None
        assert copy.deepcopy(policy)._numpy_policy is None
    policy.to("meta")
    assert module.numpy_policy(policy, fast_torso(policy.torso)) is None


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
    first, *others = (fast_torso(policy.torso) for policy in policies)
    with torch.inference_mode():
        found = first.forward_joint(others, inputs, [1, 2, 1])
        each = zip(policies, split(inputs, [1, 2, 1]), strict=True)
        want = torch.cat([policy.torso(rows) for policy, rows in each])
    torch.testing.assert_close(found, want)


def test_weights_that_changed_between_two_blocks_count_and_so_do_gradients():
    policy, inputs = make(ROW)
    first = torch.ones(4, dtype=torch.bool)
    with policy.frozen_weights():
        assert policy.act(inputs, first, ())[0].requires_grad
    with torch.no_grad():
        for p in policy.parameters():
            p.data = p + 0.5
        want, _ = policy.act(inputs, first, ())
        with policy.frozen_weights():
            torch.testing.assert_close(policy.act(inputs, first, ())[0], want)


def test_a_core_is_given_what_the_slow_way_gives_it():
    policy, inputs = make(ROW, core="lstm", core_size=4)
    first, core = torch.ones(4, dtype=torch.bool), policy.initial_core(4)
    with torch.inference_mode():
        want = policy.act(inputs, first, core)
        with policy.frozen_weights():
            got = policy.act(inputs, first, core)
    assert torch.equal(got[0], want[0])
    assert all(torch.equal(got[1][name], want[1][name]) for name in want[1])


def test_only_torsos_of_dense_layers_have_a_quick_way():
    image = Box(0, 255, (36, 36, 1), np.uint8)
    assert fast_torso(make(image)[0].torso) is None
    assert fast_torso(make(Dict(image=image, row=ROW))[0].torso) is None
    core = {"core": "gru", "core_size": 4, "previous_action_reward": True}
    assert fast_torso(make(ROW, **core)[0].torso) is None
    torso = torch.nn.Linear(5, 3)
    assert fast_torso(make(Box(-1, 1, (5,)), torso=torso)[0].torso) is None


def test_a_broken_copy_is_rejected(monkeypatch):
    policy, inputs = make(ROW, normalize_observations=True)
    with torch.inference_mode():
        monkeypatch.setattr(module.FastTorso, "_normalized", lambda self, x: x.float())
        want, _ = policy.act(inputs, torch.ones(4, dtype=torch.bool), ())
        with policy.frozen_weights():
            policy._numpy_policy = None
            got, _ = policy.act(inputs, torch.ones(4, dtype=torch.bool), ())
    assert not torch.equal(got, want)

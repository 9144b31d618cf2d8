"""Tests what compiled functions access: data of custom losses, choices, memory, other weights."""

from __future__ import annotations

import ctypes
import dataclasses
import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

import headrace as hr
from headrace.algos.common import PolicyOutputs
from headrace.learner.learner import Learner
from headrace.native import library
from headrace.nn import Network, Policy
from headrace.ops.losses import LossTerms
from headrace.types import Batch

ROWS, COLUMNS = 3, 4
pytestmark = pytest.mark.skipif(
    library.functions(torch.float32) is None, reason="the compiled functions weren't built"
)


@dataclasses.dataclass(frozen=True)
class Custom(hr.Hyperparameters):
    """Keeps the outputs of the policy, and returns terms that a test changes."""

    def init(self, policy):
        return {"changes": {}, "outputs": []}

    def terms(self, outputs: PolicyOutputs, batch: Batch, state) -> LossTerms:
        state["outputs"].append(outputs)
        value = outputs.value[:ROWS]
        return LossTerms(torch.ones_like(value), value + 1.0)._replace(**state["changes"])


def learner_of(action_space, **settings) -> tuple[Learner, Batch]:
    torch.manual_seed(0)
    policy = Policy(Box(-1, 1, (3,)), action_space, Network((8,)))
    obs, first = torch.randn(ROWS + 1, COLUMNS, 3), torch.zeros(ROWS + 1, COLUMNS).bool()
    of = policy.distribution
    with torch.no_grad():
        params = policy(obs, first, ())[0][:-1]
    batch = Batch(
        obs=obs, first=first, action=of.sample(params, of.noise((ROWS, COLUMNS), None)),
        log_prob=torch.zeros(ROWS, COLUMNS), reward=torch.zeros(ROWS, COLUMNS),
        terminated=torch.zeros(ROWS, COLUMNS).bool(), valid=~first[1:], core=(), targets={},
    )  # fmt: skip
    learner = Learner(policy, Custom(**settings), 1)
    assert settings or learner._gradients._network.native is not None
    return learner, batch


@pytest.mark.parametrize(
    "space", [Discrete(3), MultiDiscrete([2, 3]), Box(-1, 1, (2,)), Dict(a=Box(-1, 1, (2,)))]
)
def test_a_custom_loss_gets_the_parameters_of_the_distribution(space):
    learner, batch = learner_of(space)
    learner.gradient(batch)
    (outputs,) = learner.state["outputs"]
    with torch.no_grad():
        params = learner.policy(batch.obs, batch.first, ())[0][:ROWS]
    torch.testing.assert_close(outputs.params, params, rtol=1e-5, atol=1e-6)
    learner.close()


@pytest.mark.parametrize("shape", [(), (COLUMNS,), (ROWS, 1), (ROWS + 1, COLUMNS)])
@pytest.mark.parametrize("name", ["advantage", "target", "old_log_prob", "old_value", "weight"])
def test_terms_of_another_shape_are_an_error_as_with_autograd(name, shape):
    learner, batch = learner_of(Discrete(3))
    learner.state["changes"] = {name: torch.zeros(shape), "clip": 0.2, "value_clip": 0.2}
    with pytest.raises(ValueError, match=rf"{name} must be \(3, 4\) like valid"):
        learner.gradient(batch)
    learner.close()


def test_a_value_clip_without_old_values_is_unused_as_with_autograd():
    gradients = []
    for fused in (True, False):
        learner, batch = learner_of(Discrete(3), fused=fused)
        learner.state["changes"] = {"value_clip": 0.2}
        gradients.append(learner.gradient(batch)[0])
        learner.close()
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("space", [Discrete(3), MultiDiscrete([2, 3])])
@pytest.mark.parametrize("choice", [-1, 3, 10**9])
def test_choices_out_of_range_are_an_error(space, choice):
    learner, batch = learner_of(space)
    batch.action[1, 2] = choice
    with pytest.raises(IndexError, match=r"choices of a batch's actions are out of range"):
        learner.gradient(batch)
    learner.close()


def test_many_choices_need_little_memory():
    network = library.Network(2, 2, 0, 40_000)
    network.sizes[:3] = 8, 64, 64
    functions = library.functions(torch.float32)
    outputs, weights = 4 * 100 * 40_000, 4 * 64 * 40_000
    assert 4 * functions.workspace(ctypes.addressof(network), 100) < 1.1 * (outputs + weights)


def test_parameters_outside_the_network_get_no_gradient():
    learner, batch = learner_of(Discrete(3))
    learner.close()
    learner.policy.register_parameter("another", torch.nn.Parameter(torch.ones(5)))
    more = Learner(learner.policy, Custom(), 1)
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # which fills new memory with NaN
    try:
        gradient = more.gradient(batch)[0]
    finally:
        torch.use_deterministic_algorithms(before)
    assert torch.isfinite(gradient).all()
    assert (gradient == 0).sum() >= 5
    more.close()


@pytest.mark.parametrize(("flag", "is_loaded"), [("-DSOURCES=1", False), (None, True)])
def test_a_library_of_other_sources_is_left_alone(flag, is_loaded, tmp_path, monkeypatch):
    output, source = tmp_path / "dense.so", Path(library.__file__).with_name("dense.c")
    flag = flag or f"-DSOURCES={library.built().sources()}LL"
    compiler = sysconfig.get_config_var("CC").split()[0]
    flags = ["-O0", "-DONE_SET", "-fPIC", "-shared", flag, "-o", output]
    subprocess.run([compiler, *flags, source, "-lm"], check=True)
    spec = SimpleNamespace(origin=str(output))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    assert (library.built.__wrapped__() is not None) == is_loaded

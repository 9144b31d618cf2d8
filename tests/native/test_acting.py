"""Compiled acting against the modules: random spaces, networks, masks and actions."""

from __future__ import annotations

import copy
import math
import random
import threading
import warnings

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Tuple
from torch import Tensor

from headrace.native import library
from headrace.nn import Network, Policy, native_policy
from headrace.ops import tree
from tests.native.test_dense import check_mutant

SETS = [x for x in range(3) if library.functions(torch.float32, x) is not None]
pytestmark = pytest.mark.skipif(not SETS, reason="the compiled functions weren't built")

ROW = Box(-np.inf, np.inf, (5,), np.float64)
SPACES = {
    "row": Box(-90, 90, (5,)),
    "doubles": ROW,
    "integers": Box(-90, 90, (5,), np.int64),
    "matrix": Box(-1, 1, (2, 20)),
    "number": Box(-1, 1, ()),
    "named row": Dict(x=ROW),
    "codes": Discrete(7),
    "parts": Dict(a=Box(-1, 1, (2, 2)), b=Discrete(3)),
}
ACTIONS = {
    "choice": Discrete(4),
    "choices": MultiDiscrete([3, 1, 5]),
    "box": Box(-1, 1, (3,)),
    "both": Tuple(
        (Box(-1, 1, (1,)), Discrete(3), Dict(x=Box(-1, 1, (2,)), y=MultiDiscrete([2, 3])))
    ),
    "bits": MultiBinary(3),  # which aren't compiled
}


def random_policy(rng: random.Random) -> Policy:
    action = ACTIONS[rng.choice(list(ACTIONS))]
    core = rng.choice((None, None, None, None, "gru"))
    network = Network(
        tuple(rng.choice((1, 5, 16, 31, 64)) for _ in range(rng.randint(1, 4))),
        activation=rng.choice(("tanh", "relu", "elu")),
        shared=rng.choice((True, False)) if core is None else None,
        normalize_observations=rng.random() < 0.5,
        previous_action_reward=rng.random() < 0.2 and core is None,
        core=core,
        core_size=6,
    )
    masked = rng.random() < 0.4 and not isinstance(action, Box)
    policy = Policy(SPACES[rng.choice(list(SPACES))], action, network, masked)
    with torch.no_grad():
        for name, value in policy.state_dict().items():
            if "torso.normalizer" in name:
                continue
            value += 0.3 * torch.randn_like(value)
    return policy


def random_inputs(policy: Policy, *shape: int):
    """Inputs ``[*shape, ...]``; masks forbid a third of the choices, some all of a part's."""
    inputs = policy.inputs.example(math.prod(shape))

    def values(x):
        if x.dtype == torch.bool:
            return torch.rand(x.shape) < 0.66
        if x.is_floating_point():
            return 2.0 + 3.0 * torch.randn_like(x)
        return torch.randint_like(x, 2)

    filled = tree.map_leaves(values, inputs)
    return tree.map_leaves(lambda x: x.unflatten(0, shape), filled)


def random_case(seed: int):
    torch.manual_seed(seed)
    policy = random_policy(random.Random(seed))
    policy.take(policy.moments(random_inputs(policy, 1, 200)))
    if policy.torso.normalizer is not None:
        policy.torso.normalizer.scale.mul_(5.0)  # some inputs are beyond the limit
    return policy


def check(seed: int, functions: library.Functions | None = None) -> None:
    """Compare parameters, actions and their log-probabilities with those of the modules."""
    policy = random_case(seed)
    inputs, first = random_inputs(policy, 100), torch.ones(100, dtype=torch.bool)
    core = policy.initial_core(100)
    with torch.inference_mode():
        expected, _ = policy.act(inputs, first, core)
        with policy.frozen_weights():
            found, _ = policy.act(inputs, first, core)
            assert policy._native is not None
            if policy.core is None:
                single = tree.map_leaves(lambda x: x[60:61], inputs)
                assert torch.equal(policy.act(single, first[:1], ())[0], found[60:61])
            check_choices(policy)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
        if functions is not None:  # changed ones, of float32
            return
        policy, core = policy.double(), tree.map_leaves(Tensor.double, core)
        expected, _ = policy.act(inputs, first, core)
        with policy.frozen_weights():
            assert policy._native is not None
            found, _ = policy.act(inputs, first, core)
        torch.testing.assert_close(found, expected)
        assert found.dtype == torch.float64


def check_choices(policy: Policy) -> None:
    """Compare each row of a rollout with samples and log-probabilities of the distribution."""
    rows, columns, of = 3, 7, policy.distribution
    inputs, noise = random_inputs(policy, rows + 1, columns), of.noise((rows, columns), None)
    action = tree.map_leaves(
        lambda x: torch.full_like(x, 9).unflatten(0, (rows, columns)),
        policy.inputs.zero_action(rows * columns),
    )
    log_prob = torch.full((rows, columns), math.nan)
    choose = policy.chooser(inputs, noise, action, log_prob)
    assert (choose is None) == (policy.action_space == ACTIONS["bits"] or policy.core is not None)
    if choose is None:
        return
    for t in (0, 2):
        choose(t)
        row, first = tree.map_leaves(lambda x, t=t: x[t], inputs), torch.ones(columns).bool()
        params, _ = policy.act(row, first, ())
        taken = tree.map_leaves(lambda x, t=t: x[t], action)
        torch.testing.assert_close(taken, of.sample(params, noise[t]))
        expected = of.log_prob(params, taken)
        torch.testing.assert_close(log_prob[t], expected, rtol=1e-5, atol=1e-5)
    assert bool(log_prob[1].isnan().all())
    assert all(bool((x[1] == 9).all()) for x in tree.leaves(action))


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("seed", range(40))
def test_acting_is_that_of_the_modules(seed, kind, monkeypatch):
    monkeypatch.setattr(native_policy, "functions", lambda dtype: library.functions(dtype, kind))
    check(seed)


MUTANTS = [
    ("NAME(padded)(bias, 1, out, to);", "memset(to, 0, pad(out) * sizeof(real));"),
    ("(acting->is_wide ? (real)(x - wide[i]) : y - center[i]) * scale[i]", "y * scale[i]"),
    ("acting->is_wide ? (real)(x - wide[i])", "acting->is_wide ? (real)(x + wide[i])"),
    ("y = y > limit ? limit : y <", "y = y <"),
    ("y = y > limit ? limit : y < -limit ? -limit : y;", "y = y > limit ? limit : y;"),
    ("acting->is_double ? doubles[r", "acting->is_double ? singles[r"),
    ("NAME(activate)(net->activation, n * pad(out), other);", ""),
    ("layer += (in + 1) * pad(out);", "layer += in * pad(out);"),
    ("any && !mask[i] ?", "!mask[i] ?"),
    ("            mask += size;\n", ""),
    ("acting->mask + step * acting->masks", "acting->mask"),
    ("memcpy(params + outputs, log_std, net->free_params * sizeof(real));", ""),
    ("at[i] + (real)noise[i];", "at[i];"),
    ("score > most ? i : choice", "score < most ? i : choice"),
    ("total += at[choice] - top - LOG(sum);", "total += at[choice] - top;"),
    ("action[i] = at[i] + std[i] * (real)noise[i];", "action[i] = at[i] + (real)noise[i];"),
    ("(real)0.5 * z * z + log_std[i]", "(real)0.5 * z * z"),
    ("total -= (real)(0.5 * size * LOG_2PI);", ""),
    ("            std += size;\n", ""),
    ("            log_std += size;\n            std", "            std"),
    ("        noise += size;\n", ""),
    ("acting->noise + step * outputs, step)", "acting->noise, step)"),
    ("inputs + r * bytes", "inputs"),
    ("start + r,", "start,"),
    ("hidden = other;", ""),
    ("(real *)acting->params + start * last", "(real *)acting->params"),
]  # fmt: skip


@pytest.mark.parametrize(("old", "new"), MUTANTS[::13])
def test_a_changed_formula_is_seen(old, new, tmp_path, monkeypatch):
    check_mutant(old, new, tmp_path, monkeypatch, native_policy, check)


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_every_changed_formula_is_seen(old, new, tmp_path, monkeypatch):
    check_mutant(old, new, tmp_path, monkeypatch, native_policy, check)


def make(**network) -> tuple[Policy, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    policy = Policy(ROW, Discrete(3), Network((16, 8), **network))
    return policy, torch.randn(4, 5).double(), torch.ones(4, dtype=torch.bool)


@pytest.mark.parametrize("normalize", [False, True])
def test_nan_and_infinity_stay_as_they_are_without_warnings(normalize):
    policy, inputs, first = make(normalize_observations=normalize)
    inputs[0, 0], inputs[1, 0], inputs[2, 0] = torch.nan, torch.inf, 1e300
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.simplefilter("error")
        expected, _ = policy.act(inputs, first, ())
        with policy.frozen_weights():
            found, _ = policy.act(inputs, first, ())
            action, log_prob = torch.full((1, 4), 9), torch.zeros(1, 4)
            rows = inputs.expand(2, 4, 5).contiguous()
            policy.chooser(rows, torch.zeros(1, 4, 3), action, log_prob)(0)
    torch.testing.assert_close(found, expected, equal_nan=True)
    assert bool(((action >= 0) & (action < 3)).all())
    assert log_prob.isnan().equal(found.isnan().any(1).unsqueeze(0))


def test_weights_that_changed_between_two_blocks_count_and_so_do_gradients():
    policy, inputs, first = make()
    with policy.frozen_weights():
        assert policy.act(inputs, first, ())[0].requires_grad
    with torch.no_grad():
        for p in policy.parameters():
            p.data = p + 0.5
        expected, _ = policy.act(inputs, first, ())
        with policy.frozen_weights():
            torch.testing.assert_close(policy.act(inputs, first, ())[0], expected)


def test_only_frozen_weights_on_a_cpu_are_compiled():
    policy, *_ = make()
    assert policy._native is None
    with policy.frozen_weights(learns=True):
        assert policy._native is None
    with policy.frozen_weights():
        assert policy._native is not None
        assert copy.deepcopy(policy)._native is None
        with policy.frozen_weights():
            pass
        assert policy._native is not None
    assert policy._native is None
    with policy.to("meta").frozen_weights():
        assert policy._native is None


def test_a_wide_or_deep_network_is_left_to_torch():
    for hidden in ((513,), (2,) * 9):
        policy = Policy(ROW, Discrete(3), Network(hidden))
        with policy.frozen_weights():
            assert policy._native is None
    for space in (Discrete(1000), MultiDiscrete([2] * 33)):
        policy = Policy(ROW, space, Network((4,)))
        with policy.frozen_weights():
            assert policy._native is not None
            inputs, noise = torch.randn(2, 3, 5), policy.distribution.noise((1, 3), None)
            with torch.inference_mode():
                params, _ = policy.act(inputs[0], torch.ones(3).bool(), ())
                torch.testing.assert_close(params, policy.policy_head(policy.torso(inputs[0])))
            action = policy.inputs.zero_action(3).unsqueeze(0)
            choose = policy.chooser(inputs, noise, action, torch.zeros(1, 3))
            assert (choose is None) == isinstance(space, MultiDiscrete)


def test_threads_may_act_with_the_same_weights():
    policy, _, first = make()
    inputs = [torch.randn(4, 5) for _ in range(8)]
    with policy.frozen_weights(), torch.inference_mode():
        expected = [policy.act(x, first, ())[0] for x in inputs]
    wrong = []

    def act(i: int) -> None:
        with torch.inference_mode():
            for _ in range(2000):
                if not torch.equal(policy.act(inputs[i], first, ())[0], expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=act, args=(i,)) for i in range(len(inputs))]
    with policy.frozen_weights():
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not wrong

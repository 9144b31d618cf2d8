"""Compiled gradients against autograd's in float64: random networks, losses, masks and fillers."""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import math
import random
import subprocess
import sysconfig
from pathlib import Path

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete, Tuple

import headrace as hr
from headrace.learner import fused as fused_module
from headrace.learner import native
from headrace.learner.learner import Learner
from headrace.native import library
from headrace.nn import Network, Policy, native_layout
from headrace.trainer import start
from headrace.types import Batch, SingleLearner

SOURCES = Path(library.__file__).parent
SETS = [x for x in range(3) if library.functions(torch.float32, x) is not None]
pytestmark = pytest.mark.skipif(not SETS, reason="the compiled functions weren't built")


def random_action_space(rng: random.Random):
    kinds = [
        Discrete(rng.randint(1, 7)),
        MultiDiscrete([rng.randint(1, 5) for _ in range(rng.randint(1, 4))]),
        Box(-1, 1, (rng.randint(1, 5),)),
        Tuple((Discrete(3), Dict(x=Box(-1, 1, (2,)), y=MultiDiscrete([2, 3])))),
    ]
    return rng.choice(kinds)


def random_network(rng: random.Random) -> Network:
    return Network(
        tuple(rng.choice((1, 5, 16, 31, 64)) for _ in range(rng.randint(1, 4))),
        activation=rng.choice(("tanh", "relu", "elu")),
        shared=rng.choice((True, False)),
        normalize_observations=rng.choice((True, False)),
        normalize_values=rng.choice((True, False)),
    )


def random_algorithm(rng: random.Random):
    whole = {"epochs": 1, "minibatches": 1}
    parts = {"epochs": 2, "minibatches": rng.randint(1, 4)}
    entropy = {"entropy_coef": rng.choice((0.0, 0.1))}
    return rng.choice(
        [
            hr.A2C(**entropy),
            hr.IMPALA(**whole, **entropy),
            hr.IMPALA(**parts, clip=0.2, pg_rho_bar=rng.choice((0.9, 1.1)), **entropy),
            hr.IMPALA(**whole, correction="epsilon"),
            hr.APPO(**parts, clip_around=rng.choice(("behaviour", "learner")), **entropy),
            hr.PPO(**parts, **entropy),
            hr.PPO(**parts, value_clip=0.1, kl_coef=0.3, clip=0.05, value_coef=0.7),
            hr.IMPACT(ratio=rng.choice(("R1", "R2", "R3")), **entropy),
        ]
    )


def random_batch(policy: Policy, rng: random.Random) -> Batch:
    """Off-policy steps, with NaN on the fillers."""
    rows, columns = rng.randint(1, 9), rng.randint(2, 20)
    obs = 2.0 * torch.randn(rows + 1, columns, 3)
    if policy.inputs.mask != "none":
        mask = torch.rand(rows + 1, columns, policy.distribution.num_mask) < 0.7
        obs = {"observation": {"x": obs}, "action_mask": mask}
    if policy.torso.normalizer is not None:
        policy.take(policy.moments(obs))
    if policy.popart is not None:
        policy.popart.move(policy.value_head, 1.0, 3.0)
    first = torch.rand(rows + 1, columns) < 0.2
    of = policy.distribution
    with torch.no_grad():
        params = policy(obs, first, ())[0][:-1]
        action = of.sample(params, of.noise((rows, columns), None))
        log_prob = of.log_prob(params, action) + 0.3 * torch.randn(rows, columns)
    reward = torch.randn(rows, columns).masked_fill(first[1:], math.nan)
    return Batch(
        obs=obs, first=first, action=action, log_prob=log_prob.masked_fill(first[1:], math.nan),
        reward=reward, terminated=torch.rand(rows, columns) < 0.1, valid=~first[1:], core=(),
        targets={},
    )  # fmt: skip


def random_case(seed: int) -> tuple[Policy, hr.Hyperparameters, Batch]:
    rng = random.Random(seed)
    torch.manual_seed(seed)
    action, masked = random_action_space(rng), rng.random() < 0.3
    masked = masked and not isinstance(action, Box)
    space = Dict(x=Box(-1, 1, (3,))) if masked else Box(-1, 1, (3,))
    policy = Policy(space, action, random_network(rng), masked)
    with torch.no_grad():
        for p in policy.parameters():
            p += 0.1 * torch.randn_like(p)
        policy.policy_head.bias += torch.randn_like(policy.policy_head.bias)  # beyond the bounds
    return policy, random_algorithm(rng), random_batch(policy, rng)


def doubled(batch: Batch) -> Batch:
    def double(x):
        if isinstance(x, dict):
            return {name: double(part) for name, part in x.items()}
        if isinstance(x, tuple):
            return tuple(map(double, x))
        return x.double() if x.is_floating_point() else x

    fields = {f.name: double(getattr(batch, f.name)) for f in dataclasses.fields(Batch)}
    return Batch(**fields)


def check(seed: int) -> None:
    """Compare each optimiser step's gradient and metrics with those of autograd in float64."""
    policy, algo, batch = random_case(seed)
    oracle = Learner(copy.deepcopy(policy).double(), dataclasses.replace(algo, fused=False))
    learner = Learner(policy, algo, 1)
    assert learner._gradients._network.native is not None
    state = learner.state
    for step in algo.batches(learner._for_targets, lambda: batch, state, SingleLearner()):
        with torch.no_grad():  # away from the weights that acted
            for p in policy.parameters():
                p += 0.1 * torch.randn_like(p)
        oracle.policy.load_state_dict(policy.state_dict())
        found, metrics, count = learner.gradient(step)
        expected, sums, valid = oracle.gradient(doubled(step))
        error = torch.linalg.vector_norm(found.double() - expected)
        assert error <= 1e-5 * torch.linalg.vector_norm(expected) + 1e-6, seed
        assert count == valid
        assert metrics.keys() == sums.keys()
        for name, value in sums.items():
            assert float(metrics[name]) == pytest.approx(float(value), rel=1e-4, abs=1e-3), name
    for one in (learner, oracle):
        one.close()


@pytest.mark.parametrize("block", range(3))
def test_gradients_of_random_networks_are_autograds(block):
    for seed in range(20 * block, 20 * block + 20):
        check(seed)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(6))
def test_gradients_of_600_random_networks_are_autograds(block):
    for seed in range(100 * block, 100 * block + 100):
        check(seed)


@pytest.mark.parametrize("instruction_set", SETS)
def test_every_instruction_set_computes_the_same(instruction_set, monkeypatch):
    chosen = library.functions(torch.float32, instruction_set)
    monkeypatch.setattr(native, "functions", lambda dtype: chosen)
    for seed in range(200, 212):
        check(seed)


def test_a_gradient_repeats_bit_for_bit():
    policy, _, batch = random_case(5)
    learner = Learner(policy, hr.A2C(), 1)
    first, again = (learner.gradient(batch)[0] for _ in range(2))
    assert torch.equal(first, again)
    learner.close()


@pytest.mark.parametrize("instruction_set", SETS)
def test_tanh_is_exact_to_rounding(instruction_set):
    x = np.concatenate(
        [np.linspace(-12, 12, 40_001), np.logspace(-38, 1, 2_000), -np.logspace(-38, 1, 2_000)]
    ).astype(np.float32)
    y = outputs_of_one_unit(x, instruction_set)
    exact = np.tanh(x.astype(np.float64))
    assert np.max(np.abs(y - exact) / np.maximum(np.abs(exact), 1e-37)) < 3e-7
    assert np.all(np.abs(y) <= 1)
    edges = np.array([np.inf, -np.inf, np.nan, 0.0], np.float32)
    np.testing.assert_array_equal(outputs_of_one_unit(edges, instruction_set), [1, -1, np.nan, 0])


def outputs_of_one_unit(x: np.ndarray, instruction_set: int) -> np.ndarray:
    """Pass numbers through a layer of one unit with weight 1, and heads that keep its output."""
    network = library.Network(1, 1, 0, 1)
    network.sizes[0] = network.sizes[1] = 1
    network.bias[0][0] = network.policy_bias = network.value_bias = 1
    network.value_scale = 1.0
    flat = torch.tensor([1.0, 0.0])  # every weight is the first, every bias the second
    functions = library.functions(torch.float32, instruction_set)
    address = ctypes.addressof(network)
    work = torch.empty(functions.workspace(address, len(x)))
    outputs, value = torch.empty(len(x)), torch.empty(len(x))
    pointers = work.data_ptr(), outputs.data_ptr(), value.data_ptr()
    given = torch.as_tensor(x)
    functions.forward(address, flat.data_ptr(), given.data_ptr(), len(x), *pointers)
    np.testing.assert_array_equal(outputs.numpy(), value.numpy())
    return outputs.numpy()


def test_without_the_functions_torch_computes_the_same(monkeypatch):
    policy, _, batch = random_case(7)
    with_them = Learner(copy.deepcopy(policy), hr.A2C(), 1)
    monkeypatch.setattr(native, "functions", lambda dtype: None)
    without = Learner(policy, hr.A2C(), 1)
    assert without._gradients._network.native is None
    gradients = [one.gradient(batch)[0] for one in (with_them, without)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)
    for one in (with_them, without):
        one.close()


@pytest.mark.parametrize(
    "network",
    [
        Network((8,), core="lstm", core_size=4),
        Network((2 * native_layout.MOST_UNITS,)),
        Network((8,) * (library.MAX_LAYERS + 1)),
    ],
)
def test_other_networks_are_left_to_torch(network):
    learner = Learner(Policy(Box(-1, 1, (3,)), Discrete(2), network), hr.PPO(), 1)
    assert learner._gradients._network.native is None
    learner.close()


def test_an_activation_without_a_compiled_form_is_left_to_torch(monkeypatch):
    policy = Policy(Box(-1, 1, (3,)), Discrete(2), Network((8,)))
    layers = policy.torso.exact_layers()
    changed = layers._replace(activation=dataclasses.replace(layers.activation, compiled=None))
    monkeypatch.setattr(fused_module, "_dense_layers", lambda policy: [changed])
    learner = Learner(policy, hr.PPO(), 1)
    assert learner._gradients._network.native is None
    learner.close()


def test_outputs_for_targets_are_the_policys():
    for seed in range(300, 320):
        policy, algo, batch = random_case(seed)
        learner = Learner(policy, algo, 1)
        with torch.no_grad():
            found = learner._for_targets(batch.obs, batch.first, ())
            expected = policy(batch.obs, batch.first, ())
            for x, y in zip(found[:2], expected[:2], strict=True):
                torch.testing.assert_close(x, y, rtol=1e-4, atol=1e-4)
            values = learner._for_targets.values(batch.obs, batch.first, ())
            assert torch.equal(values, found[1])
        learner.close()


def test_outputs_with_gradients_are_the_policys_own():
    policy, _, batch = random_case(301)
    learner = Learner(policy, hr.A2C(), 1)
    params, _, _ = learner._for_targets(batch.obs, batch.first, ())
    assert params.requires_grad
    monitored = native.NativeOutputs(policy, None, lambda: False)
    with torch.no_grad():
        assert torch.equal(monitored(batch.obs, batch.first, ())[0], params)
    assert monitored.distribution is policy.distribution
    learner.close()


def test_a_run_says_that_the_functions_are_missing(tmp_path, monkeypatch, capsys):
    small = {"num_actors": 1, "envs_per_actor": 2, "fragment_length": 8, "transport": "serial"}
    small |= {"total_steps": 16, "eval_episodes": 0}
    hr.train("CartPole-v1", "ppo", run_dir=tmp_path / "with", **small)
    assert "compiled functions" not in capsys.readouterr().out
    monkeypatch.setattr(start, "functions", lambda dtype: None)
    hr.train("CartPole-v1", "ppo", run_dir=tmp_path / "without", **small)
    text = "note: gradients of small networks are computed by torch, which is slower: compiled "
    assert text in capsys.readouterr().out


# -- mutants --------------------------------------------------------------------------------------

MUTANTS = [
    ("sum += chance[i] = EXP(at[i] - top);", "sum += chance[i] = EXP(at[i]);"),
    ("chance[i] *= share;", ""),
    ("at[i] < -1000 ? -1000 : at[i]); /* 0 log 0 = 0 */", "at[i]);"),
    ("spread -= mean;", "spread += mean;"),
    ("total -= (real)0.5 * square", "total -= square"),
    ("const real gap = old ? log_prob - old[r] : log_ratio;", "const real gap = log_ratio;"),
    ("slope = plain >= limited ? truncated : 0;", "slope = truncated;"),
    ("ratio > most ? -most * advantage : plain;", "plain;"),
    ("sums[CLIPFRAC] += ratio != bounded;", ""),
    ("slope = EXP(log_prob - corrected) * -advantage;", "slope = -advantage;"),
    ("        slope = -advantage;\n    }\n", "        slope = advantage;\n    }\n"),
    ("FABS(own) >= FABS(moved) || FABS(move) <= clip;", "1;"),
    ("sums[VALUE_LOSS] += (real)0.5 * (a >= b || a != a ? a : b);", "sums[VALUE_LOSS] += a;"),
    ("*d_value = error * (real)-(terms->value_coef * per_unit);", "*d_value = -error;"),
    ("slope + (real)terms->kl_coef * excess", "slope"),
    ("sums[APPROX_KL] += kl;", "sums[APPROX_KL] += excess;"),
    ("d[((const int64_t *)part->action)[r * part->stride]] += d_log_prob;", ""),
    ("(spread + log_p)", "spread"),
    ("*d_free++ += (at[i] * at[i] - 1) * d_log_prob + d_entropy;", "*d_free++ += d_entropy;"),
    ("d[i] *= 1 - y[i] * y[i];", "d[i] *= 1 - y[i];"),
    ("d[i] = y[i] <= 0 ? 0 : d[i];", ";"),
    ("d[i] = y[i] <= 0 ? d[i] * (y[i] + 1) : d[i];", ";"),
    ("        if (!terms->valid[r])\n            continue;\n", ""),
    ("if (k == net->torsos - 1) {", "if (k == 1) {"),
    ("(real)-terms->entropy_coef", "(real)terms->entropy_coef"),
    ("FABS(m) - (real)1.1", "FABS(m)"),
    ("m < 0 ? -2 * excess : 2 * excess", "2 * excess"),
    ("value[r] = total * scale + mean;", "value[r] = total;"),
    ("for (; r + 6 <= rows; r += 6)", "for (; r + 6 <= rows; r += 7)"),
    ("for (; r + 2 <= rows; r += 2)", "for (; r + 3 <= rows; r += 3)"),
]  # fmt: skip


def compiled(folder: Path, old: str, new: str) -> Path:
    """Build a copy of the sources with one change, for the base instruction set alone."""
    for path in SOURCES.glob("*.[ci]*"):
        (folder / path.name).write_bytes(path.read_bytes())
    texts = {path: path.read_text() for path in folder.glob("*.inc")}
    (path,) = (path for path, text in texts.items() if old in text)
    assert texts[path].count(old) == 1, old
    path.write_text(texts[path].replace(old, new))
    compiler = sysconfig.get_config_var("CC").split()[0]
    output = folder / "dense.so"
    flags = ["-O0", "-DONE_SET", "-fPIC", "-shared", "-o", output]  # which compiles fastest
    subprocess.run([compiler, *flags, folder / "dense.c", "-lm"], check=True)
    return output


@pytest.mark.parametrize(("old", "new"), MUTANTS[::15])
def test_a_changed_formula_is_seen(old, new, tmp_path, monkeypatch):
    check_mutant(old, new, tmp_path, monkeypatch, native, lambda seed, _: check(seed))


@pytest.mark.slow
@pytest.mark.parametrize(("old", "new"), MUTANTS)
def test_every_changed_formula_is_seen(old, new, tmp_path, monkeypatch):
    check_mutant(old, new, tmp_path, monkeypatch, native, lambda seed, _: check(seed))


def check_mutant(old: str, new: str, folder: Path, monkeypatch, module, check) -> None:
    """Check that ``check(seed, functions)`` fails if the module has changed functions."""
    changed = library.loaded(str(compiled(folder, old, new)))
    functions = library.functions_of(changed, torch.float32, 0)
    monkeypatch.setattr(module, "functions", lambda dtype: functions)
    with pytest.raises(AssertionError):
        for seed in range(60):
            check(seed, functions)

"""Training on a real GPU, if there is one; ``test_elsewhere.py`` simulates one everywhere."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete

import headrace as hr
from headrace.learner.batches import gather
from headrace.ops import tree
from headrace.processes import full_float32
from headrace.recipes.atari import atari
from headrace.trainer.prefetch import BatchPrefetcher
from tests.learner import elsewhere_runs as runs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
FEW = {"total_steps": 2000, "num_actors": 2, "envs_per_actor": 4, "fragment_length": 16,
       "batch_size": 128, "eval_episodes": 2, "eval_interval": 1000}  # fmt: skip


@pytest.mark.parametrize("case", runs.CASES)
def test_learning_is_that_of_the_processor(case):
    algo, network, kwargs, env = runs.CASES[case]
    policy, filled = runs.rollouts(env, network, kwargs)
    again = copy.deepcopy(policy)
    here = runs.learn(policy, algo, filled, "cpu")
    there = runs.learn(again, algo, filled, "cuda")
    assert again.policy_head.weight.is_cuda
    np.testing.assert_allclose(there["metrics"], here["metrics"], rtol=1e-2, atol=1e-3)
    for what in ("weights", "published"):
        for key, value in here[what].items():
            torch.testing.assert_close(there[what][key], value, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(there["log_ratio"], here["log_ratio"], rtol=1e-2, atol=1e-3)


def test_a_batch_that_is_gathered_ahead_is_the_one_that_is_gathered_now():
    _, filled = runs.rollouts(runs.SceneEnv, runs.SCENE, {})
    ahead = BatchPrefetcher(torch.device("cuda"))
    try:
        for i in range(20):
            part = filled[i % 4 : i % 4 + 3]
            ahead.begin(part)
            batch, now = ahead(part), gather(part, "cpu")
            for mine, plain in zip(tree.leaves(vars(batch)), tree.leaves(vars(now)), strict=True):
                assert mine.is_cuda
                assert torch.equal(mine.cpu().nan_to_num(7.0), plain.nan_to_num(7.0))
    finally:
        ahead.close()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("conv", ["nature", "impala_shallow", "impala_deep", "impact"])
def test_what_acts_on_the_processor_says_what_the_learner_says_on_the_gpu(conv, precision):
    torch.manual_seed(0)
    side = 42 if conv == "impact" else 84
    policy = hr.Policy(Box(0, 255, (4, side, side), np.uint8), Discrete(6), hr.Network(conv=conv))
    learner = copy.deepcopy(policy).cuda()
    full_float32("cuda")
    for each in (policy, learner):
        each.compute_in(precision)
    images = torch.randint(0, 256, (1, 64, 4, side, side), dtype=torch.uint8)
    first = torch.zeros(1, 64, dtype=torch.bool)
    with torch.no_grad():
        here = policy(images, first, ())[0].log_softmax(-1)
    said = learner(images.cuda(), first.cuda(), ())[0].log_softmax(-1)
    difference = (said.cpu() - here).abs().max()
    assert difference < (1e-4 if precision == "float32" else 0.02)


@pytest.mark.parametrize(
    "algo", [hr.A2C(), hr.PPO(), hr.IMPALA(), hr.APPO(minibatches=2), hr.IMPACT()]
)
def test_a_run_learns_saves_and_goes_on(algo, tmp_path):
    network = hr.Network((16,), core="lstm" if isinstance(algo, hr.APPO) else None, core_size=8)
    folder, devices = tmp_path / "run", set()

    def seen(result, trainer) -> None:
        devices.add(next(trainer.policy.parameters()).device.type)

    hr.train("CartPole-v1", algo, [seen], device="cuda", network=network, run_dir=folder, **FEW)
    assert devices == {"cuda"}
    hr.resume(folder, [seen], total_steps=4000)
    assert devices == {"cuda"}
    policy = hr.resume(folder, [seen], total_steps=5000, device="cpu")
    assert devices == {"cuda", "cpu"}
    assert policy.policy_head.weight.isfinite().all()
    assert json.loads((folder / "summary.json").read_text())["env_steps"] >= 5000


def check_moved(policy: hr.Policy, network: hr.Network) -> None:
    """Check that all weights are finite, and have changed since the start."""
    torch.manual_seed(0)
    begun = hr.Policy(policy.observation_space, policy.action_space, network)
    before = dict(begun.named_parameters())
    for name, weight in policy.named_parameters():
        assert weight.isfinite().all()
        assert not torch.equal(weight, before[name]), name


@pytest.mark.parametrize("inference", ["actor", "shared"])
@pytest.mark.parametrize("network", [{"conv": "nature"}, {"conv": "impala_deep", "core": "lstm"}])
def test_pixels_are_learnt_from(network, inference, tmp_path):
    config = atari("appo")
    few = {**FEW, "eval_interval": None, "eval_episodes": 0}
    shape = hr.Network(core_size=32, normalize_images=True, **network)
    policy = hr.train(
        config, device="cuda", inference=inference, precision="bfloat16", network=shape,
        run_dir=tmp_path / "run", **few,
    )  # fmt: skip
    check_moved(policy, shape)


def test_torsos_are_compiled(tmp_path):
    few = {**FEW, "total_steps": 500, "eval_interval": None, "eval_episodes": 0}
    config = atari("impala")
    policy = hr.train(config, device="cuda", compile=True, run_dir=tmp_path / "run", **few)
    check_moved(policy, config.network)


def test_a_deterministic_run_repeats(tmp_path):
    few = {**FEW, "total_steps": 500, "eval_interval": None, "eval_episodes": 0}
    policies = [
        hr.train(atari("ppo"), device="cuda", deterministic=True, run_dir=tmp_path / name, **few)
        for name in "ab"
    ]
    weights = [policy.state_dict() for policy in policies]
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())

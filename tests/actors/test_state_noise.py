"""State-dependent exploration: its noise, its log-probabilities, and where it can't be used."""

from __future__ import annotations

import math

import numpy as np
import onnxruntime
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from worlds import SpaceIdentityEnv

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.algos.common import policy_outputs
from headrace.config import Config
from headrace.envs.make import make_vec
from headrace.errors import ConfigError
from headrace.learner.batches import gather
from headrace.learner.fused import can_fuse
from headrace.learner.learner import Learner
from headrace.nn import Network, Policy
from headrace.nn.native_policy import native_policy
from headrace.transport.slab import Slab
from headrace.types import Rollout

OBS = Box(-1, 1, (3,))
SDE = Network(use_sde=True)
B, T = 4, 40


ACTIONS = Box(-1, 1, (2,))


def policy_for(space=ACTIONS, **settings) -> Policy:
    torch.manual_seed(0)
    policy = Policy(OBS, space, Network((8,), use_sde=True, **settings))
    with torch.no_grad():
        policy.log_std.add_(0.5 * torch.randn_like(policy.log_std))
        policy.policy_head.weight.mul_(30.0)
    return policy


def test_actions_have_the_distribution_of_the_log_probabilities():
    space = Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3), "c": Box(-1, 1, (1,))})
    policy, count = policy_for(space), 20_000
    obs = torch.tensor([[0.3, -0.5, 0.9]]).expand(count, 3)
    noise = policy.distribution.noise((count,), torch.Generator().manual_seed(1))
    before = noise.clone()
    shape = policy.explorer().shape
    assert shape == (8, 3)
    with torch.no_grad():
        params, _ = policy.explore(
            obs, torch.zeros(count).bool(), (), torch.randn(count, *shape), noise
        )
    assert torch.equal(noise[:, 2:5], before[:, 2:5])  # of the discrete action
    action = policy.distribution.sample(params, noise)
    (*_, mean_c), log_std = params[0, :6], params[0, 6:]
    values = torch.cat([action["a"], action["c"]], -1)
    assert (values.std(0) / log_std.exp()).tolist() == pytest.approx([1.0] * 3, abs=0.02)
    assert float(action["c"].mean()) == pytest.approx(float(mean_c), abs=0.02)
    z = (values - values.mean(0)) / log_std.exp()
    assert ((z.abs() < 1).double().mean(0) - 0.6827).abs().max() < 0.01
    assert torch.corrcoef(z.t()).fill_diagonal_(0).abs().max() < 0.02
    with torch.no_grad():
        alone, _ = policy.act(obs[:1], torch.zeros(1).bool(), ())
    torch.testing.assert_close(alone, params[:1])


def test_the_deviation_begins_at_its_setting_for_features_of_size_1():
    policy = Policy(OBS, Box(-1, 1, (2,)), Network((8,), use_sde=True, log_std_init=-0.7))
    log_std = policy.finished(torch.zeros(1, 2), torch.zeros(1, 3), torch.ones(1, 8))[0, 2:]
    assert log_std.tolist() == pytest.approx([-0.7, -0.7], abs=1e-4)


@pytest.mark.parametrize("kind", ["sync", "gru", "threads"])
@pytest.mark.parametrize("sample_freq", [None, 7])
def test_noise_is_a_function_of_the_state_and_learners_know_its_density(kind, sample_freq):
    engine = "threads" if kind == "threads" else "sync"
    envs = make_vec(SpaceIdentityEnv, B, engine, {"action_space": "box", "episode_length": 5})
    torch.manual_seed(1)
    spaces = envs.single_observation_space, envs.single_action_space
    core = {"core": "gru", "core_size": 8} if kind == "gru" else {}
    policy = Policy(*spaces, Network((16,), use_sde=True, sde_sample_freq=sample_freq, **core))
    slab = Slab(rollout_spec(policy, T, B), 1, 1)
    pace = AsynchronousStepper(envs, policy, "TestEnv") if engine == "threads" else None
    collector = Collector(envs, policy, "TestEnv", None, pace)
    rollout = Rollout(**slab.trees[0])

    def filled():
        collector.reset(3)
        collector.fill(rollout, 0)
        return gather([rollout])

    batch = filled()
    with torch.no_grad():
        outputs = policy_outputs(policy, batch)
        hidden = policy.torso(batch.obs.flatten(0, 1)).unflatten(0, (T + 1, B))
    assert (outputs.log_prob - batch.log_prob)[batch.valid].abs().max() < 1e-5
    again = filled()
    torch.testing.assert_close(again.action, batch.action, atol=1e-5, rtol=1e-5)
    envs.close()
    if kind == "gru":
        return
    mean, _ = outputs.params.chunk(2, -1)
    noise, freq = batch.action - mean, sample_freq or T
    for start in range(0, T - freq + 1, freq):  # with the same matrix, noise is linear in features
        rows = slice(start, start + freq)
        for b in range(B):
            x, y = hidden[rows, b], noise[rows, b]
            fit = torch.linalg.lstsq(x, y, driver="gelsd").solution
            assert (x @ fit - y).abs().max() < 1e-4
    if sample_freq:
        x, y = hidden[:T, 0], noise[:, 0]
        fit = torch.linalg.lstsq(x, y, driver="gelsd").solution
        assert (x @ fit - y).abs().max() > 1e-2  # the matrix has changed


def test_gradients_come_from_autograd_and_features_get_none_from_the_deviation():
    policy = policy_for()
    plain = Policy(OBS, Box(-1, 1, (2,)), Network((8,)))
    assert can_fuse(plain)
    assert not can_fuse(policy)
    assert native_policy(policy) is None
    assert not Learner(policy, hr.PPO(), 1).by_hand
    obs, first = torch.randn(1, 5, 3), torch.zeros(1, 5).bool()
    params, _, _ = policy(obs, first, ())
    policy.distribution.entropy(params).sum().backward()
    assert policy.log_std.grad.abs().max() > 0
    assert all(p.grad is None or not p.grad.any() for p in policy.torso.parameters())


@pytest.mark.slow
def test_an_exported_policy_acts_the_same(tmp_path):
    policy = policy_for()
    file = policy.export_onnx(tmp_path / "policy.onnx")
    session = onnxruntime.InferenceSession(file)
    obs = np.random.default_rng(0).uniform(-1, 1, (5, 3)).astype(np.float32)
    action, params = session.run(["action", "params"], {"obs": obs})
    np.testing.assert_allclose(action, policy.predict(obs)[0], atol=1e-5)
    assert params.shape == (5, 4)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda: policy_for(Discrete(2)), "use_sde=True requires Box actions"),
        (lambda: Network(sde_sample_freq=4), "sde_sample_freq requires use_sde=True"),
        (
            lambda: Config(algo=hr.PPO(noise_color=1.0), network=SDE),
            "noise_color",
        ),
        (lambda: Config(inference="shared", network=SDE), "features"),
        (lambda: Config(policies="per-agent", network=SDE), "several policies"),
    ],
)
def test_unsupported_uses_raise_an_error_with_the_reason(change, words):
    with pytest.raises(ConfigError, match=words):
        change()


def test_a_run_trains_resumes_and_loads(tmp_path, monkeypatch):
    monkeypatch.setattr("headrace.evaluating.run_end.plot", lambda runs: None)  # too slow
    monkeypatch.setattr("headrace.evaluating.run_end._report", lambda run_dir: None)
    sizes = {"num_actors": 1, "envs_per_actor": 4, "fragment_length": 16, "eval_episodes": 0}
    settings = {"transport": "serial", "run_dir": str(tmp_path / "run"), "quiet": True, **sizes}
    network = Network((8,), use_sde=True)
    algo = hr.PPO(epochs=2, minibatches=4)
    hr.train("Pendulum-v1", algo, network=network, total_steps=256, **settings)
    policy = hr.resume(tmp_path / "run", total_steps=512, quiet=True)
    assert policy.log_std.shape == (8, 1)
    assert math.isfinite(float(policy.log_std.detach().sum()))
    assert hr.load(tmp_path / "run").network.use_sde

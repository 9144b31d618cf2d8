"""Coloured noise of continuous actions: its spectrum, its sequences, and training with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Dict, Discrete
from worlds import SpaceIdentityEnv

from headrace.actors.action_noise import ActionNoise
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.ops.colored_noise import colored_noise
from headrace.ops.distributions import DiagGaussian
from headrace.spaces.actions import distribution_for
from headrace.transport.slab import Slab
from headrace.types import Rollout

T, B = 9, 4


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0, 2.0])
def test_every_element_is_standard_normal_and_power_falls_with_frequency(beta):
    noise = colored_noise(256, 8000, beta, torch.Generator().manual_seed(0)).double()
    assert noise.mean().abs() < 0.03
    for step in (0, 1, 128, 255):
        z = noise[step].sort().values
        assert z.std() == pytest.approx(1.0, abs=0.03)
        assert float((z.abs() < 1).double().mean()) == pytest.approx(0.6827, abs=0.02)
    power = torch.fft.rfft(noise, dim=0).abs().square().mean(1)
    slope = np.polyfit(np.log(np.arange(1, 128)), np.log(power[1:128].numpy()), 1)[0]
    assert slope == pytest.approx(-beta, abs=0.02)


def drawn(noise: ActionNoise, num_steps: int) -> torch.Tensor:
    rows = noise.draw(num_steps).clone()
    noise.advance(np.full(B, num_steps))
    return rows


def test_fragments_continue_sequences_and_an_episode_begins_new_ones():
    noise, whole = (ActionNoise(DiagGaussian(2), B, 1.0) for _ in range(2))
    for one in (noise, whole):
        one.reset(5)
    expected = whole.draw(3 * T)
    assert torch.equal(noise.draw(T), expected[:T])
    noise.advance(np.array([T, T, T, 3]))  # column 3 was cut short
    second = noise.draw(T)
    assert torch.equal(second[:, :3], expected[T : 2 * T, :3])
    assert torch.equal(second[:, 3], expected[3 : 3 + T, 3])
    before = second.clone()
    noise.begin_episodes(np.array([1]), np.array([4]))
    assert torch.equal(second[:4], before[:4])
    assert torch.equal(second[4:, [0, 2, 3]], before[4:, [0, 2, 3]])
    assert not torch.isclose(second[4:, 1], before[4:, 1]).any()
    whole.begin_episodes(np.array([1]), np.array([T + 4]))
    assert torch.equal(second[4:, 1], expected[T + 4 : 2 * T, 1])
    noise.begin_episodes(np.array([2]), np.array([T]))  # beyond the fragment
    assert torch.equal(second[:, 2], before[:, 2])
    noise.advance(np.full(B, T))
    third = noise.draw(T)
    assert torch.equal(third[:, :2], expected[2 * T : 3 * T, :2])
    assert not torch.isclose(third[:, 2], expected[2 * T : 3 * T, 2]).any()


def test_sequences_end_after_their_length_and_depend_on_the_seed_alone():
    noise, other = (ActionNoise(DiagGaussian(1), B, 1.0) for _ in range(2))
    noise.reset(1)
    first = torch.cat([drawn(noise, 100) for _ in range(25)])
    assert first.isfinite().all()
    assert first.std() == pytest.approx(1.0, abs=0.2)
    other.reset(1)
    noise.reset(1)
    again = drawn(other, 100)
    assert torch.equal(again, drawn(noise, 100))
    assert not torch.equal(again, drawn(other, 100))
    # A fragment may be longer than a sequence.
    assert ActionNoise(DiagGaussian(1), 1, 1.0).draw(3000).std() > 0.3


def test_every_episode_has_its_own_sequence():
    noise = ActionNoise(DiagGaussian(1), B, 1.0)
    noise.reset(1)
    episodes = []
    for _ in range(40):  # more sequences than are drawn at once
        rows = noise.draw(8)
        noise.begin_episodes(np.arange(B), np.zeros(B, np.int64))
        episodes.append(rows[:, :, 0].T.clone())
        noise.advance(np.full(B, 8))
    rows = torch.cat(episodes)
    assert len(torch.unique(rows[:, 0])) == len(rows)


def test_short_episodes_share_sequences(monkeypatch):
    drawn = []

    def counted(*args):
        drawn.append(args)
        return colored_noise(*args)

    monkeypatch.setattr("headrace.actors.action_noise.colored_noise", counted)
    noise = ActionNoise(DiagGaussian(1), 64, 0.5)
    noise.reset(1)
    for _ in range(12):  # of 12 * 64 sequences, 64 are drawn at once
        noise.draw(8)
        noise.begin_episodes(np.arange(64), np.full(64, 8))
        noise.advance(np.full(64, 8))
    assert len(drawn) == 1


def test_state_dependent_noise_replaces_correlated_noise():
    envs = make_vec("Pendulum-v1", 2, "sync", {})
    policy = Policy(
        envs.single_observation_space, envs.single_action_space, Network((8,), use_sde=True)
    )
    noise = ActionNoise(policy.distribution, 2, 0.5, policy.explorer())
    plain = ActionNoise(policy.distribution, 2, 0.0, policy.explorer())
    for one in (noise, plain):
        one.reset(3)
    assert torch.equal(noise.draw(8), plain.draw(8))
    envs.close()


def test_only_continuous_actions_have_correlated_noise():
    space = Dict({"a": Box(-1, 1, (2,)), "b": Discrete(3), "c": Box(-1, 1, (1,))})
    distribution = distribution_for(space)
    noise, white = ActionNoise(distribution, B, 2.0), ActionNoise(distribution, B)
    assert noise.is_coloured
    assert not white.is_coloured
    assert not ActionNoise(distribution_for(Discrete(3)), B, 2.0).is_coloured
    noise.reset(0)
    step = noise.draw(200).diff(dim=0).square().mean((0, 1))
    assert (step[[0, 1, 5]] < 0.1).all()
    assert (step[2:5] > 1).all()


@pytest.mark.parametrize("stepper", ["native", "modules", "threads"])
def test_actions_follow_the_noise_and_learners_compute_the_same_log_probabilities(stepper):
    engine = "threads" if stepper == "threads" else "sync"
    envs = make_vec(SpaceIdentityEnv, B, engine, {"action_space": "box", "episode_length": 5})
    torch.manual_seed(1)
    spaces = envs.single_observation_space, envs.single_action_space
    core = {"core": "gru", "core_size": 8} if stepper == "modules" else {}
    policy = Policy(*spaces, Network((16,), **core))
    slab = Slab(rollout_spec(policy, 40, B), 1, 1)
    pace = AsynchronousStepper(envs, policy, "TestEnv") if engine == "threads" else None
    collector = Collector(envs, policy, "TestEnv", None, pace, noise_color=2.0)
    collector.reset(3)
    rollout = Rollout(**slab.trees[0])
    collector.fill(rollout, 0)
    envs.close()
    batch = gather([rollout])
    with torch.no_grad():
        outputs = policy_outputs(policy, batch)
    assert (outputs.log_prob - batch.log_prob)[batch.valid].abs().max() < 1e-5
    mean, log_std = outputs.params.chunk(2, -1)
    noise = (batch.action - mean) / log_std.exp()
    steps = noise.diff(dim=0).abs().mean(-1)  # between rows t and t + 1
    begins = batch.first[1:40]  # row t + 1 begins an episode
    # A sequence begins at the row after the last step, which is a filler.
    new = torch.zeros_like(begins)
    new[:-1] = begins[1:]
    assert new.any()
    assert steps[~new].max() < 0.25 < 0.4 < steps[new].mean()


@pytest.mark.parametrize(("color", "reaches"), [(0.0, False), (1.0, True)])
def test_pink_noise_reaches_the_goal_of_a_heavy_car(color, reaches):
    envs = make_vec("MountainCarContinuous-v0", 8, "sync", {})
    torch.manual_seed(1)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = Policy(*spaces, Network((8,), scale_actions=True))
    slab = Slab(rollout_spec(policy, 600, 8), 1, 1)
    collector = Collector(envs, policy, "Car", noise_color=color)
    collector.reset(3)
    rollout = Rollout(**slab.trees[0])
    collector.fill(rollout, 0)
    envs.close()
    assert bool(rollout.terminated.any()) == reaches

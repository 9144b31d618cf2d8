from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from worlds import CountingEnv, FaultyEnv, counting_reward

from headrace.actors.collector import Collector, EpisodeTotals, rollout_spec
from headrace.algos.common import policy_outputs
from headrace.envs.make import make_vec
from headrace.errors import EnvironmentFault
from headrace.learner.batches import gather
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.transport.slab import Slab
from headrace.types import Rollout


def collector(env, num_envs: int, num_steps: int, network=None, env_kwargs=None):
    envs = make_vec(env, num_envs, "auto", env_kwargs)
    torch.manual_seed(1)
    policy = Policy(envs.single_observation_space, envs.single_action_space, network)
    slab = Slab(rollout_spec(policy, num_steps, num_envs), 1, 1)
    made = Collector(envs, policy, "TestEnv")
    made.reset(3)

    def fill(version: int = 0) -> tuple[Rollout, int]:
        slab.poison(0)
        valid = made.fill(Rollout(**slab.trees[0]), version)
        copied = tree.map_leaves(torch.clone, slab.trees[0])
        return Rollout(**copied), valid

    return policy, fill


def test_every_step_of_every_episode_arrives_once_in_order_with_its_own_reward():
    num_envs, num_steps = 3, 7
    _, fill = collector(CountingEnv, num_envs, num_steps)
    position = [(0, 0)] * num_envs  # (episode, step) expected in the next row
    total_valid = 0
    for _ in range(20):
        rollout, valid_steps = fill()
        obs, first = rollout.obs.numpy(), rollout.first.numpy()
        ends = ~torch.isnan(rollout.episode_return).numpy()
        assert valid_steps == (~first[1:]).sum()
        total_valid += valid_steps
        for b in range(num_envs):
            for t in range(num_steps):
                episode, step = position[b]
                assert tuple(obs[t, b, 1:3]) == (episode, step)
                if first[t + 1, b]:  # filler: the next row starts the next episode
                    position[b] = (episode + 1, 0)
                    assert obs[t + 1, b, 2] == 0
                    continue
                action = int(rollout.action[t, b])
                expected = counting_reward(episode, step, action)
                assert rollout.reward[t, b] == pytest.approx(expected, rel=1e-6)
                assert obs[t + 1, b, 3] == action
                position[b] = (episode, step + 1)
                if ends[t, b]:
                    assert rollout.episode_length[t, b] == step + 1
        assert not np.isnan(rollout.reward.numpy()).any()
    assert total_valid < 20 * num_envs * num_steps  # there were fillers


def test_the_first_row_of_a_rollout_is_the_last_row_of_the_one_before():
    _, fill = collector("CartPole-v1", 5, 9)
    before, _ = fill()
    assert before.first[0].all()
    for _ in range(10):
        after, _ = fill()
        assert torch.equal(after.obs[0], before.obs[-1])
        assert torch.equal(after.first[0], before.first[-1])
        before = after


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
@pytest.mark.parametrize("shared", [False, True])
def test_log_probabilities_of_actor_and_learner_agree_on_every_valid_step(env, shared):
    policy, fill = collector(env, 6, 40, Network(shared=shared))
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.3 * torch.randn_like(p))
    for _ in range(5):
        rollout, _ = fill()
        batch = gather([rollout])
        log_prob = policy_outputs(policy, batch).log_prob
        difference = (log_prob - batch.log_prob)[batch.valid].abs().max()
        assert difference <= 1e-5


def naive_totals(amounts: np.ndarray, done: np.ndarray, carry: np.ndarray) -> np.ndarray:
    totals = np.full(done.shape, np.nan)
    for t in range(len(done)):
        carry += amounts[t]
        for b in np.flatnonzero(done[t]):
            totals[t, b], carry[b] = carry[b], 0.0
    return totals


def test_episode_totals_equal_a_loop_over_steps_across_fragments():
    rng = np.random.default_rng(0)
    totals, carry = EpisodeTotals(4), np.zeros(4)
    for _ in range(30):
        amounts, done = rng.normal(size=(6, 4)), rng.random((6, 4)) < 0.3
        np.testing.assert_allclose(
            totals.update(amounts, done), naive_totals(amounts, done, carry), atol=1e-5
        )


def test_a_discrete_space_with_an_offset_reaches_the_environment_with_the_offset():
    class Offset(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(3, start=5)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            return np.zeros(2, np.float32), {}

        def step(self, action):
            assert 5 <= action <= 7
            return np.zeros(2, np.float32), float(action), False, False, {}

    _, fill = collector(Offset, 2, 20)
    rollout, _ = fill()
    assert torch.equal(rollout.reward, rollout.action.float() + 5)


def test_a_bounded_box_action_is_clipped_for_the_environment_and_kept_unclipped():
    policy, fill = collector("Pendulum-v1", 4, 100)
    rollout, _ = fill()
    with torch.no_grad():
        policy.log_std.fill_(2.0)
    rollout, _ = fill()
    assert (rollout.action.abs() > 2.0).any()  # Pendulum's bound
    assert np.abs(policy.env_action(rollout.action.numpy())).max() == 2.0
    log_prob = policy_outputs(policy, gather([rollout])).log_prob
    torch.testing.assert_close(log_prob, rollout.log_prob, rtol=0, atol=1e-5)


def test_a_nan_is_an_error_that_names_the_environment():
    _, fill = collector(FaultyEnv, 2, 20, env_kwargs={"fail_at_step": 5, "mode": "nan"})
    with pytest.raises(EnvironmentFault, match=r"Env returned nan in its observation"):
        for _ in range(3):
            fill()


def test_the_same_seed_gives_the_same_rollout_and_another_seed_another():
    rollouts = []
    for seed in (3, 3, 4):
        envs = make_vec("CartPole-v1", 4)
        torch.manual_seed(1)
        policy = Policy(envs.single_observation_space, envs.single_action_space)
        slab = Slab(rollout_spec(policy, 16, 4), 1, 1)
        one = Collector(envs, policy, "CartPole-v1")
        one.reset(seed)
        one.fill(Rollout(**slab.trees[0]), 0)
        rollouts.append(Rollout(**slab.trees[0]))
    assert torch.equal(rollouts[0].obs, rollouts[1].obs)
    assert torch.equal(rollouts[0].action, rollouts[1].action)
    assert not torch.equal(rollouts[0].obs, rollouts[2].obs)


def test_discounted_returns_equal_a_loop_over_steps_across_fragments_and_episodes():
    gamma, num_envs = 0.9, 3
    envs = make_vec(CountingEnv, num_envs)
    policy = Policy(envs.single_observation_space, envs.single_action_space)
    slab = Slab(rollout_spec(policy, 7, num_envs, gamma), 1, 1)
    one = Collector(envs, policy, "CountingEnv", gamma)
    one.reset(0)
    total = np.zeros(num_envs)
    for _ in range(10):
        rollout = Rollout(**slab.trees[0])
        one.fill(rollout, 0)
        ends = ~torch.isnan(rollout.episode_return).numpy()
        for t in range(7):
            filler = rollout.first[t + 1].numpy()
            total = np.where(filler, 0.0, rollout.reward[t].numpy() + gamma * total)
            np.testing.assert_allclose(rollout.discounted_return[t].numpy(), total, rtol=1e-5)
            total[ends[t]] = 0.0

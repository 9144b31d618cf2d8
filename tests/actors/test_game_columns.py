"""Each step of a game's agent arrives once, in the agent's column, with its reward."""

from __future__ import annotations

import contextlib
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv
from worlds import CountingGame, counting_length, counting_truncates, game_reward

import headrace as hr
from headrace.actors.collector import Collector, rollout_spec
from headrace.actors.rollout_source import RolloutSource
from headrace.envs.make import make_vec
from headrace.envs.names import resolve
from headrace.games.vector import agents_of
from headrace.nn import Network, Policy
from headrace.ops import tree
from headrace.ops.returns import gae, vtrace
from headrace.transport.slab import Slab
from headrace.types import Rollout

GAMES, AGENTS, LENGTH, T = 2, 4, 3, 7
B = GAMES * AGENTS

SHORT = [("sync", "none"), ("threads", "obs"), ("async", "info")]
ENGINES_AND_MASKS = [
    pytest.param(engine, mask, marks=[] if (engine, mask) in SHORT else [pytest.mark.full])
    for engine in ("sync", "threads", "async")
    for mask in ("none", "info", "obs")
]


@dataclass
class Told:
    """A transition, from the environment's labels and the rollout."""

    label: tuple  # game, agent, episode, step
    before: tuple  # the observation, whole
    action: int
    reward: float
    terminated: bool
    after: tuple  # the next observation, whole


def told(rollouts: list[Rollout], b: int) -> list[Told]:
    """Return the labels of the valid steps of a column, in order."""
    found = []
    for rollout in rollouts:
        obs = rollout.obs
        while isinstance(obs, dict):  # next to a mask
            obs = obs["observation"]
        for t in (~rollout.first[1:, b]).nonzero().flatten().tolist():
            before = tuple(obs[t, b].int().tolist())
            after = tuple(obs[t + 1, b].int().tolist())
            action, reward = int(rollout.action[t, b]), float(rollout.reward[t, b])
            found.append(
                Told(before[:4], before, action, reward, bool(rollout.terminated[t, b]), after)
            )
    return found


def check_once(found: list[Told], seed: int, agent: int, length: int = LENGTH) -> None:
    """Check that each (agent, episode, step) arrives once, in order, with its data."""
    episode = step = 0
    for one in found:
        assert one.label == (seed, agent, episode, step)
        assert one.reward == game_reward(agent, episode, step, one.action)
        step += 1
        assert one.after[:5] == (seed, agent, episode, step, one.action)
        over = step == counting_length(seed + agent, episode, length)
        assert one.terminated == (over and not counting_truncates(seed + agent, episode))
        if over:
            episode, step = episode + 1, 0
    assert episode > 1


def filled(envs, count: int, network=None, num_steps: int = T, seed: int = 5) -> list[Rollout]:
    """Return ``count`` rollouts of a random policy, from poisoned slots."""
    _, infos = envs.reset(seed=0)
    torch.manual_seed(1)
    spaces = envs.single_observation_space, envs.single_action_space
    policy = Policy(*spaces, network, "action_mask" in infos)
    slab = Slab(rollout_spec(policy, num_steps, envs.num_envs, 0.9), 1, 1)
    collector = Collector(envs, policy, "CountingGame", 0.9)
    collector.reset(seed)
    rollouts = []
    for _ in range(count):
        slab.poison(0)
        valid = collector.fill(Rollout(**slab.trees[0]), 3)
        rollouts.append(Rollout(**tree.map_leaves(torch.clone, slab.trees[0])))
        assert valid == int((~rollouts[-1].first[1:]).sum())
    return rollouts


def opened(engine: str, **kwargs):
    kwargs["num_agents"] = AGENTS  # the last of whom comes late to the first game
    return contextlib.closing(make_vec(CountingGame, GAMES, engine, kwargs))


@pytest.mark.parametrize(("engine", "mask"), ENGINES_AND_MASKS)
def test_each_step_of_each_agent_arrives_once_in_its_column(engine, mask):
    with opened(engine, mask=mask) as envs:
        assert agents_of(envs) == ("agent_0", "agent_1", "agent_2", "agent_3")
        assert envs.num_envs == B
        rollouts = filled(envs, 12)
    for b in range(B):
        found = told(rollouts, b)
        check_once(found, 5 + b // AGENTS, b % AGENTS)
        if mask != "none":
            assert all((one.action - sum(one.label[2:])) % 3 < 2 for one in found)
    share = sum(int((~r.first[1:]).sum()) for r in rollouts) / (len(rollouts) * T * B)
    assert 0.5 < share < 0.9, "some columns wait"


@pytest.mark.parametrize("network", [None, Network((8,), core="gru", core_size=8)])
def test_returns_and_lengths_are_those_of_each_agents_episodes(network):
    with opened("sync") as envs:
        rollouts = filled(envs, 12, network)
    for b in range(B):
        found, agent = told(rollouts, b), b % AGENTS
        ends = torch.cat([r.episode_return[:, b] for r in rollouts])
        lengths = torch.cat([r.episode_length[:, b] for r in rollouts])
        expected, total, length = [], 0.0, 0
        for one in found:
            total, length = total + one.reward, length + 1
            if length == counting_length(5 + b // AGENTS + agent, one.label[2], LENGTH):
                expected.append((total, length))
                total, length = 0.0, 0
        known = ~ends.isnan()
        assert list(zip(ends[known].tolist(), lengths[known].tolist(), strict=True)) == expected
        assert torch.equal(known, ~lengths.isnan())


def value_of(label: tuple) -> float:
    """Return an arbitrary function of an observation's labels."""
    return math.sin(1.0 + sum((k + 1.7) * x for k, x in enumerate(label[:4])))


def test_advantages_are_those_of_a_slow_reference_for_each_agent():
    gamma, lam, rho_bar, c_bar = 0.9, 0.8, 1.0, 0.7
    with opened("sync") as envs:
        rollouts = filled(envs, 8)
    rng = np.random.default_rng(0)
    for rollout in rollouts:
        obs = rollout.obs.int().tolist()
        value = torch.tensor([[value_of(x) for x in row] for row in obs], dtype=torch.float64)
        log_ratio = torch.from_numpy(rng.normal(size=(T, B)) / 2)
        stream = rollout.reward.double(), value, rollout.terminated, rollout.first
        advantage, _ = gae(*stream, gamma=gamma, lam=lam)
        vs = vtrace(log_ratio, *stream, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar).vs
        for b in range(B):
            steps = {t: stepped(rollout, t, b) for t in range(T) if not rollout.first[t + 1, b]}
            slow = reference(steps, gamma, lam, log_ratio[:, b].exp(), rho_bar, c_bar)
            for t in steps:
                assert float(advantage[t, b]) == pytest.approx(slow[t][0], abs=1e-3)
                assert float(vs[t, b]) == pytest.approx(slow[t][1], abs=1e-3)


def stepped(rollout: Rollout, t: int, b: int) -> tuple[tuple, float, bool]:
    """Return a step's label, reward and death from the environment's rules alone."""
    seed, agent = 5 + b // AGENTS, b % AGENTS
    _, _, episode, step, _ = rollout.obs[t, b].int().tolist()
    ends = step + 1 == counting_length(seed + agent, episode, LENGTH)
    dies = ends and not counting_truncates(seed + agent, episode)
    reward = game_reward(agent, episode, step, int(rollout.action[t, b]))
    return (seed, agent, episode, step), reward, dies


def reference(steps, gamma, lam, ratio, rho_bar, c_bar) -> dict:
    """Compute GAE and V-trace as literal sums over the labelled pieces of episodes.

    Args:
        steps: of a column by row: label, reward, whether it dies. ratio: ``[T]`` of the column.
    """
    found = {}
    for t, (label, *_) in steps.items():
        rest = [s for s in steps if s >= t and steps[s][0][2] == label[2]]
        adv = trace = 0.0
        discount, c = 1.0, 1.0
        for k, s in enumerate(rest):
            (seed, agent, episode, step), reward, dies = steps[s]
            after = 0.0 if dies else value_of((seed, agent, episode, step + 1))
            delta = reward + gamma * after - value_of((seed, agent, episode, step))
            weight = float(ratio[s])
            adv += (gamma * lam) ** k * delta
            trace += discount * c * min(rho_bar, weight) * delta
            discount, c = discount * gamma, c * min(c_bar, weight)
        found[t] = adv, value_of(label) + trace
    return found


def arrived(config: hr.Config, envs: VectorEnv, num: int) -> list[Rollout]:
    """Return the first rollouts of a run's single actor over its transport.

    The environments ``envs`` provide spaces and agents, and are closed.
    """
    with contextlib.closing(envs):
        policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
        names = agents_of(envs)
    source = RolloutSource(config.actor_spec(resolve(config.env), policy, agents=names), print)
    rollouts = []
    with contextlib.closing(source):
        source.publish(policy, 0, 0)
        for _ in range(num):
            [(slot, _, rollout)] = source.take(1, lambda: False)
            rollouts.append(Rollout(**tree.map_leaves(torch.clone, vars(rollout))))
            source.release([slot])
    return rollouts


def test_each_step_arrives_once_over_every_transport(way, tiny):
    shape = {"num_actors": 1, "envs_per_actor": B, "fragment_length": T}
    named = {"env": CountingGame, "env_kwargs": {"num_agents": AGENTS}}
    config = tiny(**named, algo=hr.APPO(), **shape, **way, batch_size=None)
    rollouts = arrived(config, make_vec(**named, num_envs=GAMES), 8)
    first = int(rollouts[0].obs[0, 0, 0])
    for b in range(B):
        check_once(told(rollouts, b), first + b // AGENTS, b % AGENTS)

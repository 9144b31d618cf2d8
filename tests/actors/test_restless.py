"""Rollouts of agents that join and leave at random match a literal loop over the game."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium.vector import VectorEnv
from worlds.restless import NAMES, Entry, Restless, RestlessTurns, RestlessVector, ledger

import headrace as hr
from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector, rollout_spec
from headrace.envs.make import make_vec
from headrace.games.vector import in_turns
from headrace.learner.learner import Learner
from headrace.ops import tree
from headrace.ops.returns import gae, vtrace
from headrace.transport.slab import Slab
from headrace.types import Rollout, map_columns
from tests.actors.conftest import needs_ray
from tests.actors.test_game_columns import arrived, told, value_of

GAMES, AGENTS, T, SEED = 2, len(NAMES), 6, 40
B = GAMES * AGENTS
WORLDS = {"at once": Restless, "in turns": RestlessTurns, "native": RestlessVector}
ENGINES = [
    ("at once", "sync"), ("native", "native"), ("in turns", "sync"), ("in turns", "threads"),
    *(
        pytest.param(*one, marks=pytest.mark.full)
        for one in (("at once", "threads"), ("at once", "async"), ("in turns", "async"))
    ),
]  # fmt: skip


def filled(envs: VectorEnv, count: int, num_steps: int = T) -> list[Rollout]:
    """Return rollouts of a random policy, from poisoned slots."""
    torch.manual_seed(1)
    policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
    slab = Slab(rollout_spec(policy, num_steps, B, 0.9), 1, 1)
    pace = AsynchronousStepper(envs, policy, "Restless") if in_turns(envs) else None
    collector = Collector(envs, policy, "Restless", 0.9, pace)
    collector.reset(SEED)
    rollouts = []
    for _ in range(count):
        slab.poison(0)
        slab.trees[0]["first"].fill_(False)
        valid = collector.fill(Rollout(**slab.trees[0]), 3)
        rollouts.append(Rollout(**tree.map_leaves(torch.clone, slab.trees[0])))
        assert valid == int((~rollouts[-1].first[1:]).sum())
    return rollouts


def played(rollouts: list[Any], world: str, seed: int) -> list[list[Entry]]:
    """Return each column as a literal loop over its game gives it, for the actions that arrived."""
    columns = [told(rollouts, b) for b in range(B)]
    actions = {one.before: one.action for found in columns for one in found}
    whole = [
        ledger(world == "in turns", seed + g, 50, lambda x: actions.get(x, 0)) for g in range(GAMES)
    ]
    return [[x for game in games for x in game[i]] for games in whole for i in range(AGENTS)]


def check_ledger(rollouts: list[Any], world: str, seed: int) -> list[list[Entry]]:
    """Check that each step of each agent arrives once, in order, in its column, with its data.

    Returns:
        The entries that arrived, by column.
    """
    arrived = []
    for b, entries in enumerate(played(rollouts, world, seed)):
        found = told(rollouts, b)
        arrived.append(entries[: len(found)])
        assert len(found) > 12
        for one, entry in zip(found, entries, strict=False):
            assert one.before == entry.before
            assert one.reward == entry.reward
            assert one.terminated == entry.ends[0]
            assert one.after == entry.after
    return arrived


def seed_of(rollouts: list[Any]) -> int:
    """Return the number of the first game, from the observations of its agents."""
    return next(
        int(r.obs[0, b, 0]) for r in rollouts for b in range(AGENTS) if not bool(r.first[1, b])
    )


@pytest.mark.parametrize(("world", "engine"), ENGINES)
def test_what_arrives_is_what_a_literal_loop_over_the_game_tells(world, engine):
    envs = make_vec(WORLDS[world], GAMES, engine)
    with contextlib.closing(envs):
        rollouts = filled(envs, 30)
    check_ledger(rollouts, world, SEED)


WAYS = [
    ("serial", "native"),
    ("shm", "in turns"),
    *(
        pytest.param(*one, marks=pytest.mark.full)
        for one in itertools.product(("serial", "shm"), WORLDS)
        if one not in (("serial", "native"), ("shm", "in turns"))
    ),
    pytest.param("ray", "in turns", marks=[needs_ray, pytest.mark.ray]),
    *(
        pytest.param("ray", world, marks=[needs_ray, pytest.mark.ray, pytest.mark.full])
        for world in ("at once", "native")
    ),
]


@pytest.mark.parametrize(("way", "world"), WAYS, indirect=["way"])
def test_so_it_is_over_every_transport(way, tiny, world):
    env, shape = WORLDS[world], {"num_actors": 1, "envs_per_actor": B, "fragment_length": T}
    config = tiny(env=env, algo=hr.APPO(), **shape, **way, batch_size=None)
    rollouts = arrived(config, make_vec(env, GAMES), 40)
    check_ledger(rollouts, world, seed_of(rollouts))


@pytest.mark.parametrize("world", ["at once", "in turns"])
@pytest.mark.parametrize("num_steps", [3, 11])
def test_returns_are_those_of_a_slow_reference_of_each_agent(world, num_steps):
    gamma, lam, rho_bar, c_bar = 0.9, 0.8, 1.1, 0.7
    with contextlib.closing(make_vec(WORLDS[world], GAMES, "sync")) as envs:
        rollouts = filled(envs, 120 // num_steps, num_steps)
    known = [{one.before: one for one in entries} for entries in played(rollouts, world, SEED)]
    rng = np.random.default_rng(0)
    for rollout in rollouts:
        obs = rollout.obs.int().tolist()
        value = torch.tensor([[worth(x) for x in row] for row in obs], dtype=torch.float64)
        log_ratio = torch.from_numpy(rng.normal(size=(num_steps, B)) / 2)
        stream = rollout.reward.double(), value, rollout.terminated, rollout.first
        advantage, _ = gae(*stream, gamma=gamma, lam=lam)
        vs = vtrace(log_ratio, *stream, gamma=gamma, rho_bar=rho_bar, c_bar=c_bar).vs
        for b in range(B):
            rows = [t for t in range(num_steps) if not rollout.first[t + 1, b]]
            steps = [known[b][tuple(obs[t][b])] for t in rows]
            slow = reference(steps, gamma, lam, log_ratio[rows, b].exp().tolist(), rho_bar, c_bar)
            assert advantage[rows, b].tolist() == pytest.approx([x for x, _ in slow], abs=1e-6)
            assert vs[rows, b].tolist() == pytest.approx([x for _, x in slow], abs=1e-6)


def worth(seen) -> float:
    """Return an arbitrary function of an observation's labels."""
    return value_of(tuple(seen)) * 300.0 + seen[4]


def reference(steps, gamma, lam, ratio, rho_bar, c_bar) -> list[tuple[float, float]]:
    """Compute GAE and V-trace of an agent's steps as sums within their episodes."""
    found = []
    for first, begin in enumerate(steps):
        adv, trace, discount, decay, c = 0.0, worth(begin.before), 1.0, 1.0, 1.0
        for k in range(first, len(steps)):
            one = steps[k]
            after = 0.0 if one.ends[0] else worth(one.after)
            delta = one.reward + gamma * after - worth(one.before)
            adv += decay * delta
            trace += discount * c * min(rho_bar, ratio[k]) * delta
            decay, discount, c = decay * gamma * lam, discount * gamma, c * min(c_bar, ratio[k])
            if any(one.ends):
                break
        found.append((adv, trace))
    return found


ALGORITHMS = {
    "a2c": hr.A2C(),
    "a3c": hr.A3C(),
    "ppo": hr.PPO(epochs=2, minibatches=2),
    "impala": hr.IMPALA(),
    "appo": hr.APPO(epochs=2, minibatches=2),
    "impact": hr.IMPACT(buffer_size=2, passes=2),
}


@pytest.fixture
def learnt(monkeypatch):
    """Return the new batches of a run's learner, in order."""
    taken = []

    def watched(method):
        def run(self, fresh, *args):
            def noted():
                batch = fresh()
                taken.append(map_columns(lambda _, x: x.clone(), batch))
                return batch

            return method(self, noted, *args)

        return run

    for name in ("update", "watch"):
        monkeypatch.setattr(Learner, name, watched(getattr(Learner, name)))
    return taken


SHORT = [("ppo", "in turns"), ("a3c", "at once"), ("impact", "at once")]
WITH = [
    pytest.param(algo, world, marks=[] if (algo, world) in SHORT else [pytest.mark.full])
    for algo in ALGORITHMS
    for world in ("at once", "in turns")
]


@pytest.mark.parametrize(("algo", "world"), WITH)
def test_every_algorithm_learns_from_each_step_once(algo, world, tiny, learnt):
    shape = {"num_actors": 1, "envs_per_actor": B, "fragment_length": T, "batch_size": None}
    env = WORLDS[world]
    config = tiny(env=env, algo=ALGORITHMS[algo], **shape, transport="serial", total_steps=600)
    with contextlib.closing(hr.Trainer(config)) as trainer:
        last = list(trainer)[-1]
    entries = check_ledger(learnt, world, seed_of(learnt))
    steps = [one.env_steps for one in last.agents.values()]
    assert steps == [sum(map(len, entries[i::AGENTS])) for i in range(AGENTS)]
    over = [sum(any(one.ends) for found in entries[i::AGENTS] for one in found) for i in range(4)]
    assert [one.episodes for one in last.agents.values()] == over

"""Programs of the learning suite with few steps: tasks, peers, and headrace's command."""

from __future__ import annotations

import importlib
import inspect
import json
import math
import time
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from headrace.processes import torch_threads
from headrace.studies.children import Children
from tests.tries import few_of

TASK = "CartPole-v1"


@pytest.fixture
def learning():
    return importlib.import_module("learning")


@pytest.fixture
def tasks():
    return importlib.import_module("learning_tasks")


# -- tasks -----------------------------------------------------------------------------------------


def test_the_table_has_24_tasks_in_three_groups_and_only_settings_that_the_library_takes(tasks):
    from stable_baselines3 import PPO

    known = set(inspect.signature(PPO).parameters)
    groups = Counter(task.group for task in tasks.TASKS.values())
    assert groups == {"development": 12, "validation": 6, "test": 6}
    for task in tasks.TASKS.values():
        assert set(task.zoo.settings) <= known
        assert set(task.zoo.linear) <= set(task.zoo.settings)
        assert task.score(task.low) == 0 < task.score(task.threshold) < task.score(task.high) == 1


def test_the_maze_takes_memory_and_no_more(tasks):
    import gymnasium

    peers = importlib.import_module("learning_peers")
    task = tasks.TASKS["TMaze-v0"]
    signs = set()
    for seed in range(10):
        env = gymnasium.make(task.env_id)
        obs, _ = env.reset(seed=seed)
        sign, total, ended, path = 1 if obs[0] else 2, 0.0, False, [obs]
        while not ended:
            obs, reward, ended, truncated, _ = env.step(sign if obs[2] else 0)
            total += reward
            path.append(obs)
            assert not truncated
        assert total == 1.0
        assert not np.any(np.array(path)[1:, :2])  # the sign is seen at the beginning only
        assert len(path) - 1 <= task.stack  # so the peers still see it at the junction
        signs.add(sign)
    assert signs == {1, 2}
    assert peers.make_env(task).observation_space.shape == (4 * task.stack,)


# -- programs --------------------------------------------------------------------------------------


def literal_advantages(reward, value, ended, gamma, lam):
    """Compute the sum of discounted temporal differences until an episode's end, term by term."""
    found = np.zeros_like(reward)
    for t in range(len(reward)):
        for k in range(t, len(reward)):
            goes_on = 1.0 - ended[k]
            delta = reward[k] + gamma * goes_on * value[k + 1] - value[k]
            found[t] += (gamma * lam) ** (k - t) * delta
            if ended[k]:
                break
    return found


def test_the_peers_advantages_are_the_literal_sum():
    ppo, rng = importlib.import_module("learning_ppo"), np.random.default_rng(0)
    reward, value, ended = rng.normal(size=12), rng.normal(size=13), rng.random(12) < 0.2
    assert ended.any()
    given = [torch.tensor(x, dtype=torch.float64)[:, None] for x in (reward, value, ended)]
    found = ppo.advantages(*given, 0.9, 0.8)[:, 0].numpy()
    assert found == pytest.approx(literal_advantages(reward, value, ended.astype(float), 0.9, 0.8))


PEERS = [("sb3", TASK), ("sb3-default", "Taxi-v4"), ("cleanrl", TASK), ("cleanrl", "Pendulum-v1")]


@pytest.mark.parametrize(("name", "task"), few_of(PEERS, [("cleanrl", TASK)]))
def test_a_peer_trains_to_its_steps(learning, name, task):
    limits = {"task": task, "seed": 1, "steps": 2048, "seconds": 60.0, "interval_s": 0.01}
    with torch_threads(1):
        found = learning.PEERS[name](limits | {"episodes": 2, "started": time.monotonic()})
    seconds, steps, returns = (list(column) for column in zip(*found["curve"], strict=True))
    assert steps[-1] == found["env_steps"] == 2048
    assert seconds == sorted(seconds)
    assert all(map(math.isfinite, returns))
    assert found["evaluation"]["episodes"] == 2
    json.dumps(found)


@pytest.mark.slow
def test_headrace_runs_as_its_command_does_and_its_curve_is_read(learning, tasks):
    task = replace(tasks.TASKS[TASK], steps=6000, seconds=60.0)
    run = learning.measure(learning.Case(task, "ppo", 3), Children())
    assert run["env_steps"] >= 6000
    assert run["settings"]["config"]["seed"] == 3
    assert run["evaluation"]["episodes"] == learning.EVAL_EPISODES
    assert run["curve"][-1][1] == run["env_steps"]
    assert run["curve"][-1][2] == run["training_return"] > 5.0

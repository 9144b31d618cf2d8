"""Runs of the page on ClusterEnv: training, examples, waiting environments, and speed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import headrace as hr
from book.clusterenv_checks import Endless
from book.experiment import Case
from headrace.api import run as train
from headrace.config import Config
from headrace.learner.batches import gather
from headrace.learner.learner import Learner

ROOT = Path(__file__).parents[2]


# -- runs that train -------------------------------------------------------------------------------


def synced(config: Config) -> dict[str, Any]:
    """Train in this process. Return the final return, updates, and fetches of weights."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train(Config(**{**vars(config), "run_dir": str(path)}), draw=False, quiet=True)
        summary = json.loads((path / "summary.json").read_text(encoding="utf-8"))
    return {
        "final_return": summary["episodic_return"],
        "updates": summary["updates"],
        "pulls": summary["sync"]["pulls"],
        "megabytes": summary["sync"]["bytes"] / 1e6,
        "lag_mean": summary["lag"]["mean"],
    }


def example(case: Case) -> dict[str, Any]:
    """Run a file of examples/ on CartPole-v1. Return its first and its evaluated return."""
    command = [sys.executable, str(ROOT / "examples" / case["example"]), "--env-id", "CartPole-v1"]
    command += ["--nodes", str(case["nodes"]), "--seed", str(case["seed"])]
    command += ["--total-steps", str(case["total_steps"])]
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
    if done.returncode:
        raise RuntimeError(done.stderr[-300:])
    first = re.search(r"return +(-?[\d.]+)", done.stdout)
    last = re.search(r"Evaluation: return (-?[\d.]+)", done.stdout)
    if first is None or last is None:
        raise RuntimeError(f"no returns in {done.stdout[-300:]}")
    return {"first_return": float(first[1]), "evaluated": float(last[1])}


class GaussianAgent(nn.Module):
    """Continuous-action policy as the agent of a ClusterEnv."""

    def __init__(self, policy: hr.Policy) -> None:
        super().__init__()
        self.policy = policy

    def _params(self, obs: Tensor) -> Tensor:
        return self.policy.act(obs, torch.zeros(len(obs), dtype=torch.bool), ())[0]

    def act(self, obs: Tensor) -> dict[str, Any]:
        """Return environment actions, and the sampled actions with their log-probabilities."""
        policy, params = self.policy, self._params(obs)
        u = policy.distribution.sample(params, policy.distribution.noise((len(obs),), None))
        log_prob = policy.distribution.log_prob(params, u)
        return {"action": policy.env_action(u.numpy()), "u": u, "log_prob": log_prob}

    def distribution(self, obs: Tensor) -> torch.distributions.Normal:
        """Return the distribution of ``u``, on which drift is measured."""
        mean, log_std = self._params(obs).chunk(2, -1)
        return torch.distributions.Normal(mean, log_std.exp())


def continuous(case: Case) -> dict[str, Any]:
    """Train PPO on Pendulum-v1 with a ClusterEnv. Return the first and last 20 episodes' means."""
    torch.manual_seed(case["seed"])
    torch.set_num_threads(1)
    settings = {"env_name": "Pendulum-v1", "envs_per_node": 8, "engine": "auto"}
    returns: list[float] = []
    with hr.ClusterEnv(settings, hr.LocalConfig(nodes=2)) as envs:
        policy = hr.Policy(envs.single_observation_space, envs.single_action_space)
        agent, learner = GaussianAgent(policy), Learner(policy, pendulum_ppo())
        envs.reset(seed=case["seed"])
        updates = case["total_steps"] // (2 * 8 * 128)
        for update in range(updates):
            rollout = envs.collect(agent, 128)
            returns += rollout.episode_return[~rollout.episode_return.isnan()].tolist()
            batch = gather([rollout])
            batch.action = rollout.extras["u"]
            learner.update(lambda: batch, 1e-3 * (1 - update / updates))  # noqa: B023
        syncs = int(envs.sync_info["weight_syncs"].mean())
    learner.close()
    first, last = float(np.mean(returns[:20])), float(np.mean(returns[-20:]))
    return {"first_return": first, "final_return": last, "updates": updates, "syncs": syncs}


def pendulum_ppo() -> hr.PPO:
    """Return the algorithm of :func:`continuous`."""
    return hr.PPO(epochs=10, minibatches=8, gamma=0.9, learning_rate=1e-3, entropy_coef=0.0)


# -- waiting environments --------------------------------------------------------------------------


class Uneven(Endless):
    """Environment that sleeps for 32 ms in one of 32 steps."""

    def step(self, action: Any) -> Any:
        """Sleep in one of 32 steps, and count."""
        if self.np_random.random() < 1 / 32:
            time.sleep(32e-3)
        return super().step(action)


def waiting(case: Case) -> dict[str, Any]:
    """Return the steps per second of collect or collect_async with four uneven workers."""
    agent, steps = Counted(), 16
    settings = {"type": Uneven, "envs_per_node": 4}
    with hr.ClusterEnv(settings, hr.LocalConfig(nodes=4)) as envs:
        envs.reset(seed=case["seed"])
        envs.collect(agent, steps)
        count, start = 0, time.perf_counter()
        if case["call"] == "collect":
            while time.perf_counter() - start < case["seconds"]:
                count += envs.collect(agent, steps).reward.numel()
        else:
            for rollout in envs.collect_async(agent, steps):
                count += rollout.reward.numel()
                if time.perf_counter() - start >= case["seconds"]:
                    break
        seconds = time.perf_counter() - start
    return {"sps": count / seconds}


class Counted(nn.Module):
    """Agent for observations of one number."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 2)

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Return actions, and log-probabilities that are not used."""
        return torch.zeros(len(obs), dtype=torch.int64), torch.zeros(len(obs))


# -- speed -----------------------------------------------------------------------------------------


def speeds(case: Case) -> dict[str, Any]:
    """Return steps/s of single processes, of two workers, and of two rules for fetching."""
    from aaps import Alone, rate
    from json_steps import ENVS as EACH
    from json_steps import WORKERS, agent_for

    torch.set_num_threads(1)
    seconds, every = case["seconds"], WORKERS * EACH
    agent, alone = agent_for("LunarLander-v3"), Alone("LunarLander-v3")
    settings = {"env_name": "LunarLander-v3", "envs_per_node": EACH}
    try:
        found = {"one": alone.measure(1, seconds), "two": alone.measure(2, seconds)}
    finally:
        alone.close()
    with hr.ClusterEnv(settings, hr.LocalConfig(nodes=WORKERS)) as envs:
        envs.reset(seed=case["seed"])
        envs.collect(agent, 128)
        found["step"] = rate(lambda: envs.step(agent), every, seconds)
        found["collect"] = rate(lambda: envs.collect(agent, 64), every * 64, seconds)
    small = agent_for("CartPole-v1")

    def update_and_collect() -> None:
        with torch.no_grad():
            next(small.parameters()).mul_(1.0001)
        envs.collect(small, 16)

    for rule in ("every", "adaptive"):
        settings = {"env_name": "CartPole-v1", "envs_per_node": EACH, "engine": "auto"}
        settings |= {"weight_sync": rule, "max_policy_lag": None}
        with hr.ClusterEnv(settings, hr.LocalConfig(nodes=WORKERS)) as envs:
            envs.reset(seed=case["seed"])
            found[rule] = rate(update_and_collect, every * 16, seconds)
            found[f"{rule}_syncs"] = float(envs.sync_info["weight_syncs"].mean())
    return found

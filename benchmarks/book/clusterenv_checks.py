"""Checks of the page on ClusterEnv: the interface, the divergence, resets, and Ray."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn

import headrace as hr
from book.experiment import Case

ENVS = 8  # of each of two workers


class Minimal:
    """The paper's agent, with act and get_parameters alone."""

    def __init__(self) -> None:
        self.weight = torch.zeros(4)

    def act(self, obs: Tensor) -> Tensor:
        """Sample actions."""
        return (torch.rand(len(obs)) < torch.sigmoid(obs @ self.weight)).long()

    def get_parameters(self) -> Tensor:
        """Return the weights."""
        return self.weight


class Shown(nn.Module):
    """Agent that shows its distribution."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)

    def distribution(self, obs: Tensor) -> torch.distributions.Categorical:
        """Return the action distribution."""
        return torch.distributions.Categorical(logits=self.layer(obs))

    def act(self, obs: Tensor) -> Tensor:
        """Sample actions."""
        return self.distribution(obs).sample()


class Endless(gymnasium.Env):
    """Environment that never ends, and returns the number of steps since its reset."""

    observation_space, action_space = Box(0.0, np.inf, (1,)), Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        """Begin at 0."""
        super().reset(seed=seed)
        self._t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        """Count."""
        self._t += 1
        return np.full(1, self._t, np.float32), 1.0, False, False, {}


def cartpoles(place: Any = None, **settings: Any) -> hr.ClusterEnv:
    """Return 16 CartPoles on two workers."""
    settings = {"env_name": "CartPole-v1", "envs_per_node": ENVS} | settings
    return hr.ClusterEnv(settings, place or hr.LocalConfig(nodes=2))


def trajectory(envs: Any, seed: int, steps: int = 200) -> np.ndarray:
    """Return observations, rewards and ends under actions that follow from the seed."""
    rng, found = np.random.default_rng(seed), [envs.reset(seed=seed)[0].ravel()]
    for _ in range(steps):
        obs, *columns, _ = envs.step(rng.integers(0, 2, 2 * ENVS))
        found.append(np.concatenate([obs.ravel(), *map(np.asarray, columns)]))
    return np.concatenate(found).astype(np.float64)


def same_as_gymnasium(seed: int) -> dict[str, Any]:
    """Compare with Gymnasium's SyncVectorEnv."""
    make = [lambda: gymnasium.make("CartPole-v1")] * (2 * ENVS)
    expected = trajectory(SyncVectorEnv(make), seed)
    with cartpoles() as envs:
        return {"difference": float(np.abs(trajectory(envs, seed) - expected).max())}


def same_on_ray(seed: int) -> dict[str, Any]:
    """Compare workers on Ray with local ones."""
    with cartpoles() as envs:
        expected = trajectory(envs, seed)
    with cartpoles(hr.RayConfig(nodes=2)) as envs:
        return {"difference": float(np.abs(trajectory(envs, seed) - expected).max())}


def listing(seed: int) -> dict[str, Any]:
    """Run the paper's listing with an agent that changes at each step, by little and then by much.

    Two of its lines are others here: step returns Gymnasium's five values, and workers are local.
    """
    config = {"type": "gymnasium", "kl_threshold": 0.05, "env_name": "LunarLander-v3"}
    agent = Minimal()
    agent.weight = torch.zeros(8)
    env = hr.ClusterEnv(env_config=config | {"envs_per_node": 4}, config=hr.LocalConfig(nodes=2))
    env.launch()
    syncs = []
    obs = env.reset()
    for step in range(1000):
        agent.weight += 1e-4 if step < 500 else 1e-1
        obs, _reward, _terminated, _truncated, info = env.step(agent)
        syncs.append(int(info["weight_syncs"].max()))
    env.close()
    return {"rows": len(obs), "syncs_before": syncs[499], "syncs_after": syncs[-1] - syncs[499]}


def divergence(seed: int) -> dict[str, Any]:
    """Compare the measured divergence with the paper's formula on the same observations."""
    torch.manual_seed(seed)
    agent, before = Shown(), Shown()
    before.load_state_dict(agent.state_dict())
    with cartpoles(kl_threshold=1e6, max_policy_lag=None) as envs:
        envs.reset(seed=seed)
        rollout = envs.collect(agent, 64)
        with torch.no_grad():
            agent.layer.weight += 0.5 * torch.randn_like(agent.layer.weight)
        envs.step(agent)
        measured = envs.sync_info["divergence"]
    obs = rollout.obs[:-1]
    old, new = (one.distribution(obs).logits.log_softmax(-1) for one in (before, agent))
    kl = (old.exp() * (old - new)).sum(-1).detach()  # [64, 16]
    expected = [float(part.mean()) for part in kl.split(ENVS, 1)]
    error = max(abs(m / e - 1) for m, e in zip(measured.tolist(), expected, strict=True))
    return {"relative_error": error, "divergence": expected[0]}


def partial_resets(seed: int) -> dict[str, Any]:
    """Step environments that never end, and reset two of them."""
    with cartpoles(type=Endless, env_name=None) as envs:
        envs.reset(seed=seed)
        actions = np.zeros(2 * ENVS, int)
        for _ in range(300):
            envs.step(actions)
        mask = np.isin(np.arange(2 * ENVS), (1, 12))
        envs.reset(options={"reset_mask": mask})
        obs = envs.step(actions)[0][:, 0]
    return {"reset": obs[mask].tolist(), "others": sorted(set(obs[~mask].tolist()))}


CHECKS = {
    "gymnasium": same_as_gymnasium,
    "listing": listing,
    "divergence": divergence,
    "partial": partial_resets,
    "ray": same_on_ray,
}


def check(case: Case) -> dict[str, Any]:
    """Run a check by its name."""
    torch.set_num_threads(1)
    return CHECKS[case["check"]](case["seed"])

"""Single-file PPO in the style of CleanRL, written from its description.

One environment loop, GAE, shuffled minibatches, separate tanh networks with orthogonal weights,
Adam with an annealed rate, clipped policy and value, clipped gradient; "The 37 Implementation
Details of Proximal Policy Optimization" (Huang et al., 2022). With Box actions, observations and
rewards are normalised and clipped to 10. As in CleanRL, a truncation counts as a termination.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import wrappers
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from learning_peers import EVALUATION_SEED, Curve, evaluation_of, make_env
from learning_tasks import TASKS, Task
from torch import nn

HIDDEN = 64
LIMIT = 10.0  # bound of normalised observations and rewards


@dataclass(frozen=True)
class Recipe:
    """The published defaults; DISCRETE are ppo.py's, CONTINUOUS ppo_continuous_action.py's."""

    learning_rate: float
    num_envs: int
    num_steps: int
    minibatches: int
    epochs: int
    entropy_coef: float
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


DISCRETE = Recipe(2.5e-4, 4, 128, 4, 4, 0.01)
CONTINUOUS = Recipe(3e-4, 1, 2048, 32, 10, 0.0)


def _layer(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _network(inputs: int, outputs: int, gain: float) -> nn.Sequential:
    first, second = _layer(inputs, HIDDEN, 2**0.5), _layer(HIDDEN, HIDDEN, 2**0.5)
    return nn.Sequential(first, nn.Tanh(), second, nn.Tanh(), _layer(HIDDEN, outputs, gain))


class Agent(nn.Module):
    """Separate policy and value networks; for Box actions with a state-independent deviation."""

    def __init__(self, num_inputs: int, num_outputs: int, continuous: bool) -> None:
        super().__init__()
        self.policy = _network(num_inputs, num_outputs, 0.01)
        self.value = _network(num_inputs, 1, 1.0)
        self.log_std = nn.Parameter(torch.zeros(num_outputs)) if continuous else None

    def distribution(self, obs: torch.Tensor) -> Any:
        """Return the distribution of actions, each of which is one event."""
        outputs = self.policy(obs)
        if self.log_std is None:
            return torch.distributions.Categorical(logits=outputs)
        normal = torch.distributions.Normal(outputs, self.log_std.exp())
        return torch.distributions.Independent(normal, 1)


def _make(task: Task, gamma: float) -> Any:
    env = wrappers.RecordEpisodeStatistics(make_env(task))
    if not isinstance(env.action_space, gymnasium.spaces.Box):
        return env
    env = wrappers.NormalizeObservation(wrappers.ClipAction(env))
    env = wrappers.TransformObservation(
        env, lambda obs: np.clip(obs, -LIMIT, LIMIT), env.observation_space
    )
    env = wrappers.NormalizeReward(env, gamma=gamma)
    return wrappers.TransformReward(env, lambda reward: float(np.clip(reward, -LIMIT, LIMIT)))


def _tensor(obs: np.ndarray) -> torch.Tensor:
    return torch.as_tensor(obs, dtype=torch.float32)


def advantages(
    reward: torch.Tensor, value: torch.Tensor, ended: torch.Tensor, gamma: float, lam: float
) -> torch.Tensor:
    """Compute advantages by generalised advantage estimation (Schulman et al., 2016).

    Args:
        reward, ended: of each step, ``[T, B]``; ``ended`` is 1 if the step ended its episode.
        value: of each observation and of the next one, ``[T + 1, B]``.
    """
    found, running = torch.zeros_like(reward), torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        goes_on = 1.0 - ended[t]
        delta = reward[t] + gamma * goes_on * value[t + 1] - value[t]
        running = delta + gamma * lam * goes_on * running
        found[t] = running
    return found


def loss_of(agent: Agent, recipe: Recipe, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Compute clipped surrogate, clipped value and entropy losses, averaged over rows."""
    now = agent.distribution(batch["obs"])
    ratio = (now.log_prob(batch["action"]) - batch["log_prob"]).exp()
    advantage = batch["advantage"]
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    clipped = ratio.clamp(1.0 - recipe.clip, 1.0 + recipe.clip)
    surrogate = torch.minimum(ratio * advantage, clipped * advantage).mean()
    value, before = agent.value(batch["obs"]).squeeze(-1), batch["value"]
    target = batch["target"]
    near = before + (value - before).clamp(-recipe.clip, recipe.clip)
    value_loss = 0.5 * torch.maximum((value - target) ** 2, (near - target) ** 2).mean()
    entropy = now.entropy().mean()
    return recipe.value_coef * value_loss - surrogate - recipe.entropy_coef * entropy


def descend(
    agent: Agent, optimizer: torch.optim.Optimizer, recipe: Recipe, batch: dict[str, torch.Tensor]
) -> None:
    """Take the optimiser steps of an update on a rollout with fields ``[T * B, …]``."""
    size = len(batch["target"])
    for _ in range(recipe.epochs):
        for rows in torch.randperm(size).tensor_split(recipe.minibatches):
            loss = loss_of(agent, recipe, {name: values[rows] for name, values in batch.items()})
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), recipe.max_grad_norm)
            optimizer.step()


class Training:
    """Environments, agent and optimiser of a run."""

    def __init__(self, task: Task, recipe: Recipe, seed: int) -> None:
        torch.manual_seed(seed)
        self.recipe = recipe
        self.envs = SyncVectorEnv(
            [lambda: _make(task, recipe.gamma)] * recipe.num_envs,
            autoreset_mode=AutoresetMode.SAME_STEP,
        )
        actions = self.envs.single_action_space
        self.continuous = isinstance(actions, gymnasium.spaces.Box)
        size = int(actions.shape[0] if self.continuous else actions.n)
        self.agent = Agent(self.envs.single_observation_space.shape[0], size, self.continuous)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), recipe.learning_rate, eps=1e-5)
        self.obs = _tensor(self.envs.reset(seed=seed)[0])
        self.steps = 0

    def collect(self, curve: Curve) -> dict[str, torch.Tensor]:
        """Collect a rollout with fields ``[T * B, …]``. If the run ends meanwhile, it is empty."""
        rows: list[tuple[torch.Tensor, ...]] = []
        for _ in range(self.recipe.num_steps):
            with torch.no_grad():
                chosen = self.agent.distribution(self.obs)
                action = chosen.sample()
                value = self.agent.value(self.obs).squeeze(-1)
                log_prob = chosen.log_prob(action)
            obs, reward, terminated, truncated, infos = self.envs.step(action.numpy())
            ended = terminated | truncated
            if ended.any():
                curve.add(infos["final_info"]["episode"]["r"][ended])
            self.steps += self.recipe.num_envs
            curve.point(self.steps)
            rows.append((self.obs, action, log_prob, value, _tensor(reward), _tensor(ended)))
            self.obs = _tensor(obs)
            if curve.ended(self.steps):
                return {}
        names = ("obs", "action", "log_prob", "value", "reward", "ended")
        batch = dict(zip(names, map(torch.stack, zip(*rows, strict=True)), strict=True))
        with torch.no_grad():
            last = self.agent.value(self.obs).squeeze(-1)[None]
        reward, ended = batch.pop("reward"), batch.pop("ended")
        discount = self.recipe.gamma, self.recipe.lam
        value = torch.cat([batch["value"], last])
        batch["advantage"] = advantages(reward, value, ended, *discount)
        batch["target"] = batch["advantage"] + batch["value"]
        return {name: rows.flatten(0, 1) for name, rows in batch.items()}

    def update(self, batch: dict[str, torch.Tensor], remaining: float) -> None:
        """Train on a rollout. ``remaining`` is the factor on the initial learning rate."""
        for group in self.optimizer.param_groups:
            group["lr"] = remaining * self.recipe.learning_rate
        descend(self.agent, self.optimizer, self.recipe, batch)

    def evaluate(self, task: Task, episodes: int) -> list[float]:
        """Return returns of one deterministic episode in each of several environments."""
        envs = SyncVectorEnv([lambda: make_env(task)] * episodes)
        obs, _ = envs.reset(seed=EVALUATION_SEED)
        total, playing = np.zeros(episodes), np.ones(episodes, bool)
        while playing.any():
            if self.continuous:
                known = self.envs.envs[0].get_wrapper_attr("obs_rms")
                obs = (obs - known.mean) / np.sqrt(known.var + 1e-8)
                obs = np.clip(obs, -LIMIT, LIMIT)
            with torch.no_grad():
                action = self.agent.distribution(_tensor(obs)).mode.numpy()
            if self.continuous:
                space = envs.single_action_space
                action = np.clip(action, space.low, space.high)
            obs, reward, terminated, truncated, _ = envs.step(action)
            total += reward * playing
            playing &= ~(terminated | truncated)
        envs.close()
        return total.tolist()


def train(request: dict[str, Any]) -> dict[str, Any]:
    """Train and evaluate; see learning_peers.py."""
    torch.set_num_threads(1)  # the fastest for its small batches
    task, curve = TASKS[request["task"]], Curve(request)
    actions = make_env(task).action_space
    recipe = CONTINUOUS if isinstance(actions, gymnasium.spaces.Box) else DISCRETE
    training = Training(task, recipe, request["seed"])
    while not curve.ended(training.steps):
        remaining = 1.0 - training.steps / request["steps"]
        if batch := training.collect(curve):
            training.update(batch, remaining)
    curve.point(training.steps, last=True)
    return {
        "curve": curve.points,
        "env_steps": training.steps,
        "evaluation": evaluation_of(training.evaluate(task, request["episodes"])),
        "settings": asdict(recipe),
    }

"""Single-file PPO for Atari with envpool, written from CleanRL's description.

One loop: inference for all environments, generalised advantages, shuffled minibatches in float32,
Adam with an annealed rate, clipped policy, value and gradient ("The 37 Implementation Details of
Proximal Policy Optimization", Huang et al. 2022). Defaults are those that CleanRL publishes for
Atari. The module doesn't import headrace.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

EVALUATION_SEED = 1_000_000  # same as headrace
_PROTOCOL = {"frame_skip": 4, "stack_num": 4, "noop_max": 30, "use_fire_reset": False}


@dataclass(frozen=True)
class Recipe:
    """CleanRL's settings for Atari with envpool."""

    num_envs: int = 8
    num_steps: int = 128
    minibatches: int = 4
    epochs: int = 4
    learning_rate: float = 2.5e-4
    anneals: bool = True
    clip: float = 0.1
    gamma: float = 0.99
    lam: float = 0.95
    entropy_coef: float = 0.01
    value_coef: float = 0.5
    max_grad_norm: float = 0.5


class Agent(nn.Module):
    """Network of Mnih et al. (2015), shared by policy and value."""

    def __init__(self, num_actions: int) -> None:
        super().__init__()
        self.torso = nn.Sequential(
            *(_layer(nn.Conv2d(4, 32, 8, stride=4)), nn.ReLU()),
            *(_layer(nn.Conv2d(32, 64, 4, stride=2)), nn.ReLU()),
            *(_layer(nn.Conv2d(64, 64, 3, stride=1)), nn.ReLU()),
            nn.Flatten(),
            *(_layer(nn.Linear(3136, 512)), nn.ReLU()),
        )
        self.policy = _layer(nn.Linear(512, num_actions), 0.01)
        self.value = _layer(nn.Linear(512, 1), 1.0)

    def forward(self, x: torch.Tensor) -> tuple[torch.distributions.Categorical, torch.Tensor]:
        """Return the action distribution and values ``[N]`` of observations ``[N, 4, 84, 84]``."""
        hidden = self.torso(x / 255.0)
        chosen = torch.distributions.Categorical(logits=self.policy(hidden))
        return chosen, self.value(hidden).flatten()


def _layer(layer: Any, gain: float = 2**0.5) -> Any:
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def make(game: str, num_envs: int, seed: int, **given: Any) -> Any:
    """Create an envpool environment of a game."""
    import envpool

    settings = {"num_envs": num_envs, "seed": seed, **_PROTOCOL, **given}
    return envpool.make(f"{game}-v5", env_type="gymnasium", **settings)


class Scores:
    """Accumulates unclipped returns of whole games."""

    def __init__(self, num_envs: int) -> None:
        self._total = np.zeros(num_envs)

    def ended(self, infos: dict[str, Any]) -> list[float]:
        """Add rewards, and return the scores of games that end with this step."""
        self._total += infos["reward"]
        over = np.asarray(infos["terminated"], bool) | (infos["elapsed_step"] >= 27_000)
        found = self._total[over].tolist()
        self._total[over] = 0.0
        return found


class Training:
    """One training run.

    Args:
        steps: steps over which the learning rate falls to 0.
    """

    def __init__(self, game: str, recipe: Recipe, seed: int, steps: int) -> None:
        torch.manual_seed(seed)
        self.recipe, self.game, self._all = recipe, game, steps
        self.envs = make(game, recipe.num_envs, seed, episodic_life=True, reward_clip=True)
        self.agent, self.scores = Agent(int(self.envs.action_space.n)), Scores(recipe.num_envs)
        self.optimizer = torch.optim.Adam(self.agent.parameters(), recipe.learning_rate, eps=1e-5)
        self.obs, self.done = torch.Tensor(self.envs.reset()[0]), torch.zeros(recipe.num_envs)
        self.steps = 0

    def update(self, noted: Callable[[list[float]], None] = lambda scores: None) -> None:
        """Collect a rollout and train on it. ``noted`` receives scores of finished games."""
        if self.recipe.anneals:
            left = max(0.0, 1.0 - self.steps / self._all)
            self.optimizer.param_groups[0]["lr"] = left * self.recipe.learning_rate
        obs, action, log_prob, value, reward, done = self._collect(noted)
        advantage = self._advantages(value, reward, done)
        samples = [obs, action, log_prob, advantage, advantage + value, value]
        samples = [x.flatten(0, 1) for x in samples]
        size = len(samples[0]) // self.recipe.minibatches
        for _ in range(self.recipe.epochs):
            for at in torch.randperm(len(samples[0])).split(size):
                self._learn(*(x[at] for x in samples))

    def _collect(self, noted: Callable[[list[float]], None]) -> list[torch.Tensor]:
        rows = []
        for _ in range(self.recipe.num_steps):
            with torch.no_grad():
                chosen, value = self.agent(self.obs)
                action = chosen.sample()
            seen, reward, ended, cut, infos = self.envs.step(action.numpy().astype(np.int32))
            noted(self.scores.ended(infos))
            given = torch.tensor(reward, dtype=torch.float32)
            rows.append((self.obs, action, chosen.log_prob(action), value, given, self.done))
            self.obs, self.done = torch.Tensor(seen), torch.Tensor(ended | cut)
            self.steps += self.recipe.num_envs
        return [torch.stack(x) for x in zip(*rows, strict=True)]

    @torch.no_grad()
    def _advantages(
        self, value: torch.Tensor, reward: torch.Tensor, done: torch.Tensor
    ) -> torch.Tensor:
        values = torch.cat([value, self.agent(self.obs)[1][None]])
        alive = 1.0 - torch.cat([done, self.done[None]])[1:]
        found, last = torch.zeros_like(reward), torch.zeros_like(self.done)
        for t in reversed(range(len(reward))):
            delta = reward[t] + self.recipe.gamma * values[t + 1] * alive[t] - values[t]
            found[t] = last = delta + self.recipe.gamma * self.recipe.lam * alive[t] * last
        return found

    def _learn(
        self,
        obs: torch.Tensor,
        action: torch.Tensor,
        old: torch.Tensor,
        advantage: torch.Tensor,
        target: torch.Tensor,
        before: torch.Tensor,
    ) -> None:
        recipe, clip = self.recipe, self.recipe.clip
        chosen, value = self.agent(obs)
        ratio = (chosen.log_prob(action) - old).exp()
        scaled = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        gain = torch.minimum(ratio * scaled, ratio.clamp(1 - clip, 1 + clip) * scaled)
        clipped = before + (value - before).clamp(-clip, clip)
        error = torch.maximum((value - target).square(), (clipped - target).square())
        loss = recipe.value_coef * 0.5 * error.mean() - gain.mean()
        loss -= recipe.entropy_coef * chosen.entropy().mean()
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.agent.parameters(), recipe.max_grad_norm)
        self.optimizer.step()

    @torch.no_grad()
    def evaluate(self, episodes: int) -> list[float]:
        """Return scores of whole games with sampled actions, as many from each environment."""
        num_envs = min(episodes, 8)
        envs = make(self.game, num_envs, EVALUATION_SEED)
        scores, found = Scores(num_envs), list[float]()
        obs = envs.reset()[0]
        while len(found) < episodes:
            action = self.agent(torch.Tensor(obs))[0].sample()
            obs, _, _, _, infos = envs.step(action.numpy().astype(np.int32))
            found += scores.ended(infos)
        return found[:episodes]


def train(request: dict[str, Any]) -> dict[str, Any]:
    """Train until the limit of steps or seconds, or the target, for benchmarks/atari.py.

    Args:
        request: ``game``, ``seed``, ``steps``, ``seconds``, ``target`` (mean of the last 100
            games), ``episodes`` (of the evaluation), ``threads`` (of torch), ``interval_s`` and
            ``started`` (see learning_peers.Curve).
    """
    from learning_peers import Curve, evaluation_of

    torch.set_num_threads(request["threads"])
    curve = Curve(request)
    training = Training(request["game"], Recipe(), request["seed"], request["steps"])
    while not curve.ended(training.steps):
        training.update(curve.add)
        curve.point(training.steps)
        if curve.points and curve.points[-1][2] >= request["target"]:
            break
    curve.point(training.steps, last=True)
    evaluation = evaluation_of(training.evaluate(request["episodes"]))
    return {"curve": curve.points, "env_steps": training.steps, "evaluation": evaluation}

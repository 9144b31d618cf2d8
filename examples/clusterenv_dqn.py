"""DQN (Mnih et al. 2015) in one file: workers keep acting while this process trains.

    python examples/clusterenv_dqn.py --env-id CartPole-v1 --nodes 2
    tensorboard --logdir runs

Epsilon is a buffer of the network, so workers receive it with the weights.
"""

from __future__ import annotations

import copy
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import SyncVectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter

import headrace as hr


@dataclass
class Args:
    env_id: str = "CartPole-v1"
    """Gymnasium id of an environment with vectors as observations and discrete actions."""
    seed: int = 0
    """Random seed of environments and torch. The order in which workers finish still varies."""
    total_steps: int = 100_000
    """Environment steps, excluding autoreset steps."""
    nodes: int = 2
    """Worker processes on this machine."""
    envs_per_node: int = 8
    """Environments per worker."""
    num_steps: int = 16
    """Steps per environment in each rollout of a worker."""
    kl_threshold: float = 0.01
    """A worker fetches weights when its policy diverges by more than this KL, in nats."""
    max_policy_lag: int = 50
    """A worker also fetches weights when it is this many rollouts behind."""
    learning_rate: float = 1e-3
    """Learning rate of Adam."""
    gamma: float = 0.99
    """Discount factor."""
    buffer_size: int = 50_000
    """Capacity of the replay buffer, in transitions."""
    learning_starts: int = 1_000
    """Environment steps before the first optimiser step."""
    batch_size: int = 128
    """Transitions per optimiser step."""
    steps_per_update: int = 4
    """Environment steps per optimiser step."""
    target_interval: int = 100
    """Optimiser steps between updates of the target network."""
    exploration_fraction: float = 0.2
    """Fraction of all steps over which epsilon falls from 1 to `end_epsilon`."""
    end_epsilon: float = 0.02
    """Final probability of a random action."""
    eval_episodes: int = 20
    """Episodes of the final evaluation."""


class QNetwork(nn.Module):
    """Action values and their epsilon-greedy policy."""

    epsilon: Tensor

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Linear(num_inputs, 128), nn.ReLU()),
            *(nn.Linear(128, 128), nn.ReLU()),
            nn.Linear(128, num_actions),
        )
        self.register_buffer("epsilon", torch.tensor(1.0))

    def forward(self, obs: Tensor) -> Tensor:
        """Return action values ``[B, num_actions]`` of observations ``[B, num_inputs]``."""
        return self.layers(obs)

    def distribution(self, obs: Tensor) -> Categorical:
        """Return the action distribution. ClusterEnv measures policy divergence with it."""
        value = self(obs)
        greedy = nn.functional.one_hot(value.argmax(-1), value.shape[-1])
        return Categorical(probs=(1 - self.epsilon) * greedy + self.epsilon / value.shape[-1])

    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions and return them with their log-probabilities, ``[B]`` each."""
        distribution = self.distribution(obs)
        action = distribution.sample()
        return action, distribution.log_prob(action)


class ReplayBuffer:
    """Replay buffer of the latest ``capacity`` transitions."""

    def __init__(self, capacity: int, num_inputs: int) -> None:
        self.size, self._next, self._capacity = 0, 0, capacity
        self._columns = (
            torch.zeros(capacity, num_inputs),
            torch.zeros(capacity, dtype=torch.int64),
            torch.zeros(capacity),
            torch.zeros(capacity, num_inputs),
            torch.zeros(capacity, dtype=torch.bool),
        )

    def add(self, columns: tuple[Tensor, ...]) -> None:
        """Store transitions in place of the oldest ones."""
        num_new = len(columns[0])
        rows = (self._next + torch.arange(num_new)) % self._capacity
        for column, new in zip(self._columns, columns, strict=True):
            column[rows] = new.to(column.dtype)
        self._next = (self._next + num_new) % self._capacity
        self.size = min(self.size + num_new, self._capacity)

    def sample(self, num_rows: int) -> tuple[Tensor, ...]:
        """Sample with replacement: obs, action, reward, next_obs, terminated."""
        rows = torch.randint(self.size, (num_rows,))
        return tuple(column[rows] for column in self._columns)


def transitions(rollout: hr.types.Rollout) -> tuple[Tensor, ...]:
    """Return the transitions of a rollout, without autoreset steps (``first[t + 1]``).

    The observation after a truncated step is the last one of the episode.

    Returns:
        obs, action, reward, next_obs, terminated, ``[n, ...]`` each.
    """
    valid = ~rollout.first[1:]
    obs, next_obs = rollout.obs[:-1], rollout.obs[1:]
    columns = (obs, rollout.action, rollout.reward, next_obs, rollout.terminated)
    return tuple(column[valid] for column in columns)


def td_loss(online: QNetwork, target: QNetwork, batch: tuple[Tensor, ...], gamma: float) -> Tensor:
    """Return the mean squared TD error. Only terminated steps don't bootstrap."""
    obs, action, reward, next_obs, terminated = batch
    with torch.no_grad():
        best = online(next_obs).argmax(-1, keepdim=True)  # double Q-learning
        value = target(next_obs).gather(1, best).squeeze(1)
        goal = reward + gamma * value * ~terminated
    return nn.functional.mse_loss(online(obs).gather(1, action[:, None]).squeeze(1), goal)


def evaluate(network: QNetwork, args: Args) -> np.ndarray:
    """Return the returns of ``eval_episodes`` episodes with greedy actions."""
    envs = SyncVectorEnv([lambda: gymnasium.make(args.env_id)] * args.eval_episodes)
    obs, _ = envs.reset(seed=args.seed + 1_000_000)
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while running.any():
        with torch.no_grad():
            action = network(torch.from_numpy(obs)).argmax(-1)
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        returns += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


def report(
    writer: SummaryWriter,
    scalars: dict[str, float],
    sync: dict[str, np.ndarray],
    steps: int,
    shown: bool,
) -> None:
    """Write metrics for TensorBoard; ``shown``: also print a line."""
    scalars["charts/weight_syncs"] = sync["weight_syncs"].sum()
    scalars["charts/divergence"] = sync["divergence"].max()
    for name, number in scalars.items():
        writer.add_scalar(name, number, steps)
    if shown:
        print(
            f"{steps:>9,} steps  return {scalars['charts/episodic_return']:6.1f}  "
            f"{scalars['charts/SPS']:,.0f} steps/s  "
            f"weight syncs {sync['weight_syncs'].tolist()}, "
            f"{sync['weight_bytes'].sum() / 1000:,.0f} KB"
        )


def main(args: Args) -> None:
    """Train, print a line per 10,000 steps, and evaluate."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # more threads don't speed up networks this small
    run_dir = f"runs/{args.env_id}__{Path(__file__).stem}__{args.seed}__{int(time.time())}"
    print(f"Training DQN in {run_dir} with {args}")
    writer = SummaryWriter(run_dir)
    config = {
        "env_name": args.env_id,
        "envs_per_node": args.envs_per_node,
        "kl_threshold": args.kl_threshold,
        "max_policy_lag": args.max_policy_lag,
    }
    envs = hr.ClusterEnv(config, hr.LocalConfig(nodes=args.nodes))
    num_inputs = int(np.prod(envs.single_observation_space.shape))
    network = QNetwork(num_inputs, int(envs.single_action_space.n))
    target = copy.deepcopy(network)
    optimizer = torch.optim.Adam(network.parameters(), args.learning_rate, fused=True)
    replay = ReplayBuffer(args.buffer_size, num_inputs)
    envs.reset(seed=args.seed)
    latest: deque[float] = deque(maxlen=100)
    steps, updates, loss, began = 0, 0, torch.tensor(0.0), time.perf_counter()
    for rollout in envs.collect_async(network, args.num_steps):
        fresh = transitions(rollout)
        replay.add(fresh)
        before, steps = steps, steps + len(fresh[0])
        latest.extend(rollout.episode_return[~rollout.episode_return.isnan()].tolist())
        while steps >= args.learning_starts and updates * args.steps_per_update < steps:
            loss = td_loss(network, target, replay.sample(args.batch_size), args.gamma)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            updates += 1
            if updates % args.target_interval == 0:
                target.load_state_dict(network.state_dict())
        explored = steps / (args.exploration_fraction * args.total_steps)
        network.epsilon.fill_(max(args.end_epsilon, 1 - explored))

        finished = steps >= args.total_steps
        if finished or steps // 1000 > before // 1000:
            scalars = {
                "charts/episodic_return": float(np.mean(latest)) if latest else float("nan"),
                "charts/SPS": steps / (time.perf_counter() - began),
                "charts/epsilon": network.epsilon.item(),
                "losses/td_loss": loss.item(),
            }
            shown = finished or steps // 10_000 > before // 10_000
            report(writer, scalars, envs.sync_info, steps, shown)
        if finished:
            break
    envs.close()
    writer.close()
    returns = evaluate(network, args)
    mean, deviation = returns.mean(), returns.std()
    print(f"Evaluation: return {mean:.1f} ± {deviation:.1f}, {len(returns)} episodes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))

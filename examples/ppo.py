"""PPO (Schulman et al. 2017) in one file, for discrete actions.

    python examples/ppo.py             one process
    python examples/ppo.py --nodes 2   environments and inference on workers, with ClusterEnv
    tensorboard --logdir runs

Environments use Gymnasium's NEXT_STEP autoreset: the step after an episode's end only resets.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gymnasium
import numpy as np
import torch
import tyro
from gymnasium.vector import SyncVectorEnv, VectorEnv
from torch import Tensor, nn
from torch.distributions import Categorical
from torch.utils.tensorboard import SummaryWriter

import headrace as hr
from headrace.nn.normalizer import Normalizer
from headrace.nn.popart import PopArt
from headrace.ops.moments import MovingMoments


@dataclass
class Args:
    env_id: str = "LunarLander-v3"
    """Gymnasium id of an environment with vectors as observations and discrete actions."""
    seed: int = 0
    """Random seed of environments and torch."""
    total_steps: int = 1_000_000
    """Environment steps, excluding autoreset steps."""
    num_envs: int = 32
    """Total number of environments."""
    nodes: int = 0
    """Number of workers that run environments and policy; 0: use this process only."""
    place: Literal["local", "ray", "slurm", "kubernetes"] = "local"
    """Backend of the workers: local processes, Ray actors, a SLURM job or Kubernetes pods."""
    kl_threshold: float = 0.005
    """A worker fetches weights when its policy diverges by more than this KL, in nats."""
    num_steps: int = 128
    """Steps per environment and update."""
    learning_rate: float = 1e-3
    """Initial learning rate of Adam, annealed linearly to 0."""
    gamma: float = 0.999
    """Discount factor. Below 0.999, hovering until the time limit looks as good as landing."""
    gae_lambda: float = 0.98
    """Lambda of generalised advantage estimation."""
    update_epochs: int = 4
    """Epochs per update."""
    num_minibatches: int = 8
    """Minibatches per epoch."""
    clip_coef: float = 0.2
    """Clipping range of the probability ratio."""
    ent_coef: float = 0.01
    """Weight of the entropy bonus."""
    vf_coef: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float = 0.5
    """Maximum gradient norm."""
    eval_episodes: int = 20
    """Episodes of the final evaluation."""


class Agent(nn.Module):
    """Actor and critic as separate multi-layer perceptrons."""

    def __init__(self, num_inputs: int, num_actions: int) -> None:
        super().__init__()
        self.actor = perceptron(num_inputs, num_actions, last_gain=0.01)
        self.critic = perceptron(num_inputs, 1, last_gain=1.0)
        self.normalizer, self.popart = Normalizer(num_inputs), PopArt()  # for any scale of data

    def distribution(self, obs: Tensor) -> Categorical:
        """Return the action distribution of observations ``[..., num_inputs]``."""
        return Categorical(logits=self.actor(self.normalizer(obs)))

    def value(self, obs: Tensor) -> Tensor:
        """Return values ``[...]`` of observations ``[..., num_inputs]``, in reward units."""
        return self.popart(self.critic(self.normalizer(obs)).squeeze(-1))

    @torch.no_grad()
    def act(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Sample actions and return them with their log-probabilities, ``[B]`` each."""
        distribution = self.distribution(obs)
        action = distribution.sample()
        return action, distribution.log_prob(action)


def perceptron(num_inputs: int, num_outputs: int, last_gain: float) -> nn.Sequential:
    """Return a network with two hidden layers and orthogonal initialisation."""
    sizes = [num_inputs, 64, 64, num_outputs]
    layers: list[nn.Module] = []
    for i, gain in enumerate([2**0.5, 2**0.5, last_gain]):
        linear = nn.Linear(sizes[i], sizes[i + 1])
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def gae(
    reward: Tensor, value: Tensor, terminated: Tensor, valid: Tensor, gamma: float, lam: float
) -> Tensor:
    """Compute advantages by generalised advantage estimation (Schulman et al. 2016).

    After a truncated step, ``value[t + 1]`` is the value of the final observation, which
    bootstraps. The following autoreset step is invalid and ends the sum.

    Args:
        reward, terminated, valid: ``[T, N]``. value: ``[T + 1, N]``.

    Returns:
        Advantages ``[T, N]``, 0 at invalid steps.
    """
    advantage = torch.zeros_like(reward)
    carried = torch.zeros_like(reward[0])
    for t in reversed(range(len(reward))):
        discount = gamma * ~terminated[t]
        delta = reward[t] + discount * value[t + 1] - value[t]
        carried = torch.where(valid[t], delta + discount * lam * carried, 0.0)
        advantage[t] = carried
    return advantage


def learn(
    agent: Agent, optimizer: torch.optim.Optimizer, data: dict[str, Tensor], args: Args
) -> dict[str, float]:
    """Train on valid steps ``[n, ...]``. Return metrics of the last minibatch."""
    num_steps = len(data["obs"])
    for _ in range(args.update_epochs):
        for index in torch.randperm(num_steps).tensor_split(args.num_minibatches):
            obs, action, advantage = (data[k][index] for k in ("obs", "action", "advantage"))
            distribution, value = agent.distribution(obs), agent.value(obs)
            log_ratio = distribution.log_prob(action) - data["log_prob"][index]
            ratio = log_ratio.exp()
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
            clipped = ratio.clamp(1 - args.clip_coef, 1 + args.clip_coef)
            policy_loss = -torch.minimum(ratio * advantage, clipped * advantage).mean()
            value, target = map(agent.popart.normalized, (value, data["target"][index]))
            value_loss = 0.5 * (value - target).square().mean()
            entropy = distribution.entropy().mean()
            loss = policy_loss + args.vf_coef * value_loss - args.ent_coef * entropy
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(agent.parameters(), args.max_grad_norm)
            optimizer.step()
    return {
        "losses/policy_loss": policy_loss.item(),
        "losses/value_loss": value_loss.item(),
        "losses/entropy": entropy.item(),
        "losses/approx_kl": (ratio - 1 - log_ratio).mean().item(),
        "losses/clipfrac": ((ratio - 1).abs() > args.clip_coef).float().mean().item(),
    }


def evaluate(agent: Agent, args: Args) -> np.ndarray:
    """Return the returns of ``eval_episodes`` episodes with the most likely actions."""
    envs = SyncVectorEnv([lambda: gymnasium.make(args.env_id)] * args.eval_episodes)
    obs, _ = envs.reset(seed=args.seed + 1_000_000)
    returns, running = np.zeros(envs.num_envs), np.ones(envs.num_envs, bool)
    while running.any():
        with torch.no_grad():
            action = agent.distribution(torch.from_numpy(obs)).logits.argmax(-1)
        obs, reward, terminated, truncated, _ = envs.step(action.numpy())
        returns += reward * running
        running &= ~(terminated | truncated)
    envs.close()
    return returns


def make(args: Args) -> VectorEnv:
    """Create the environments in this process or on workers."""
    if not args.nodes:
        return gymnasium.make_vec(args.env_id, args.num_envs, vectorization_mode="sync")
    place = getattr(hr, f"{args.place.capitalize()}Config")(nodes=args.nodes)  # hr.RayConfig …
    config = {"env_name": args.env_id, "envs_per_node": args.num_envs // args.nodes}
    return hr.ClusterEnv(config | {"kl_threshold": args.kl_threshold}, place)


def act_and_step(envs: VectorEnv, agent: Agent, obs: Tensor) -> tuple[Tensor, Tensor, tuple]:
    """Step all environments. Return actions, log-probabilities and the result of ``envs.step``.

    Args:
        obs: observations for inference in this process; workers have their own.
    """
    if not isinstance(envs, hr.ClusterEnv):
        action, log_prob = agent.act(obs)
        return action, log_prob, envs.step(action.numpy())
    stepped = envs.step(agent)
    action, log_prob = (torch.from_numpy(stepped[-1][name]) for name in ("action", "log_prob"))
    return action, log_prob, stepped


def report(
    writer: SummaryWriter,
    scalars: dict[str, float],
    sync: dict[str, np.ndarray],
    steps: int,
    update: int,
    shown: bool,
) -> None:
    """Write metrics for TensorBoard; ``shown``: also print a line."""
    if sync:
        scalars["charts/weight_syncs"] = sync["weight_syncs"].sum()
        scalars["charts/divergence"] = sync["divergence"].max()
    for name, number in scalars.items():
        writer.add_scalar(name, number, steps)
    if shown:
        mean, sps = scalars["charts/episodic_return"], scalars["charts/SPS"]
        print(f"{steps:>9,} steps  return {mean:7.1f}  {sps:,.0f} steps/s")
        if sync:
            sent_kb, syncs = sync["weight_bytes"].sum() / 1000, sync["weight_syncs"].tolist()
            print(f"{'':>9} weight syncs {syncs} of {update} updates, {sent_kb:,.0f} KB")


def main(args: Args) -> None:
    """Train, print a line per ten updates, and evaluate."""
    torch.manual_seed(args.seed)
    torch.set_num_threads(1)  # more threads don't speed up networks this small
    run_dir = f"runs/{args.env_id}__{Path(__file__).stem}__{args.seed}__{int(time.time())}"
    print(f"Training PPO in {run_dir} with {args}")
    writer = SummaryWriter(run_dir)
    envs = make(args)
    obs_shape = envs.single_observation_space.shape
    agent = Agent(int(np.prod(obs_shape)), int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(agent.parameters(), args.learning_rate, eps=1e-5)

    shape = (args.num_steps, envs.num_envs)
    obs = torch.zeros(args.num_steps + 1, envs.num_envs, *obs_shape)
    action, log_prob, reward = torch.zeros(shape).long(), torch.zeros(shape), torch.zeros(shape)
    terminated, valid = torch.zeros(shape).bool(), torch.zeros(shape).bool()
    next_obs, _ = envs.reset(seed=args.seed)
    ended = np.zeros(envs.num_envs, bool)
    episode_return, latest = np.zeros(envs.num_envs), deque(maxlen=100)
    targets = MovingMoments(0.1)  # moments of the value targets
    steps, update, began = 0, 0, time.perf_counter()
    while steps < args.total_steps:
        optimizer.param_groups[0]["lr"] = args.learning_rate * (1 - steps / args.total_steps)
        for t in range(args.num_steps):
            obs[t] = torch.from_numpy(next_obs)
            valid[t] = torch.from_numpy(~ended)  # the step after an episode's end only resets
            action[t], log_prob[t], stepped = act_and_step(envs, agent, obs[t])
            next_obs, r, term, trunc, info = stepped
            if "_fault" in info:  # a worker died, so its actions are missing
                valid[t] &= torch.from_numpy(~info["_fault"])
            reward[t], terminated[t] = torch.from_numpy(r), torch.from_numpy(term)
            ended = term | trunc
            episode_return += r
            latest.extend(episode_return[ended & valid[t].numpy()])
            episode_return[ended] = 0.0
        obs[-1] = torch.from_numpy(next_obs)
        steps, update = steps + int(valid.sum()), update + 1

        with torch.no_grad():
            value = agent.value(obs)
        advantage = gae(reward, value, terminated, valid, args.gamma, args.gae_lambda)
        data = {"obs": obs[:-1], "action": action, "log_prob": log_prob, "advantage": advantage}
        data["target"] = advantage + value[:-1]
        data = {name: x[valid] for name, x in data.items()}
        scalars = learn(agent, optimizer, data, args)
        agent.normalizer.update(data["obs"])  # workers receive it with the next weights
        targets.note(data["target"].mean().item(), data["target"].square().mean().item())
        agent.popart.move(agent.critic[-1], targets.mean, targets.deviation)
        scalars["charts/episodic_return"] = float(np.mean(latest)) if latest else float("nan")
        scalars["charts/SPS"] = steps / (time.perf_counter() - began)
        shown = update % 10 == 1 or steps >= args.total_steps
        report(writer, scalars, envs.sync_info if args.nodes else {}, steps, update, shown)
    envs.close()
    writer.close()
    returns = evaluate(agent, args)
    mean, deviation = returns.mean(), returns.std()
    print(f"Evaluation: return {mean:.1f} ± {deviation:.1f}, {len(returns)} episodes")


if __name__ == "__main__":
    main(tyro.cli(Args, description=__doc__))

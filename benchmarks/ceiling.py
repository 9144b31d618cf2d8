"""Upper bound of throughput: environments alone, and handwritten torch loops to act and train.

The only part of headrace that runs is its vector environments.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from headrace.studies.stopwatch import measure_time

FRAGMENT_LENGTH = 64
HIDDEN = (64, 64)  # tanh, separate networks for policy and value, in every program
CHUNK_STEPS = 4096  # of the learner, as well as whole batches
PART_S = 0.6  # seconds of each measurement


def engine_of(env_id: str, engine: str) -> str:
    """Return the engine that ``auto`` selects for this environment."""
    from headrace import make_vec

    if engine != "auto":
        return engine
    envs = make_vec(env_id, 1)
    envs.close()
    name = type(envs.unwrapped).__name__
    return {"EnvPool": "envpool", "SyncVectorEnv": "sync"}.get(name, "native")


def measure_env(env_id: str, engine: str, num_envs: int) -> dict:
    """Return steps per second of environments on one core, with random actions and reset steps."""
    from headrace import make_vec

    envs = make_vec(env_id, num_envs, engine)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(100)])
    envs.reset(seed=0)
    return {"sps": num_envs / seconds_of(lambda: envs.step(next(actions)))}


def measure_ceiling(env_id: str, engine: str, num_envs: int, batch_size: int) -> dict:
    """Return microseconds per step of each part and variant, and ``sps`` on all cores.

    ``sps`` counts the cheapest variants.
    """
    import torch

    from headrace import make_vec
    from headrace.processes import keep_freed_memory, num_cores

    torch.set_num_threads(1)
    envs = make_vec(env_id, 1, engine)
    sizes = (envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    envs.close()
    ways: dict[str, dict[str, float]] = {"environment": {}, "inference": {}, "learning": {}}
    for allocator in ("default malloc", "tuned malloc"):
        if allocator == "tuned malloc":
            keep_freed_memory()
        ways["environment"][allocator] = 1e6 / measure_env(env_id, engine, num_envs)["sps"]
        ways["inference"][allocator] = inference_us(*sizes, num_envs)
        ways["learning"][f"whole batch, {allocator}"] = learning_us(*sizes, batch_size, batch_size)
        ways["learning"][f"chunks, {allocator}"] = learning_us(*sizes, batch_size, CHUNK_STEPS)
    step_us = sum(min(costs.values()) for costs in ways.values())
    return {"sps": num_cores() * 1e6 / step_us, "us_per_step": ways}


def seconds_of(call: Callable[[], Any]) -> float:
    """Return seconds per call, without time in which its threads had no core."""

    def one() -> float:
        call()
        return 1.0

    return measure_time(one, PART_S).wall_s


def plain_network(num_inputs: int, num_outputs: int) -> Any:
    """Return a network with two tanh layers of HIDDEN units."""
    from torch import nn

    a, b = HIDDEN
    return nn.Sequential(
        nn.Linear(num_inputs, a), nn.Tanh(), nn.Linear(a, b), nn.Tanh(), nn.Linear(b, num_outputs)
    )


def inference_us(num_inputs: int, num_actions: int, num_envs: int) -> float:
    """Run the policy and sample, with noise and log-probabilities computed once per fragment."""
    import torch

    policy, obs = plain_network(num_inputs, num_actions), torch.randn(num_envs, num_inputs)

    @torch.inference_mode()
    def fragment() -> None:
        shape = (FRAGMENT_LENGTH, num_envs, num_actions)
        noise = torch.empty(shape).exponential_().log_()
        logits, actions = torch.empty(shape), torch.empty(shape[:2], dtype=torch.int64)
        for t in range(FRAGMENT_LENGTH):
            logits[t] = policy(obs)
            actions[t] = (logits[t] - noise[t]).argmax(-1)
        logits.log_softmax(-1).gather(-1, actions[..., None])

    return seconds_of(fragment) / (FRAGMENT_LENGTH * num_envs) * 1e6


def learning_us(num_inputs: int, num_actions: int, batch_size: int, chunk_steps: int) -> float:
    """Run APPO's update: forward, V-trace, clipped loss, backward in chunks, one Adam step."""
    import torch

    rows, columns = FRAGMENT_LENGTH, batch_size // FRAGMENT_LENGTH
    policy, critic = plain_network(num_inputs, num_actions), plain_network(num_inputs, 1)
    optimizer = torch.optim.Adam([*policy.parameters(), *critic.parameters()], lr=1e-6)
    obs, reward = torch.randn(rows + 1, columns, num_inputs), torch.ones(rows, columns)
    action = torch.randint(num_actions, (rows, columns, 1))
    old_log_prob = torch.full((rows, columns), -1.0).sub_(torch.rand(rows, columns))
    discount = 0.99 * (torch.rand(rows, columns) > 0.01)
    width = chunk_steps // rows

    def chunk_loss(part: slice) -> Any:
        log_p = policy(obs[:-1, part]).log_softmax(-1)
        log_ratio = log_p.gather(-1, action[:, part]).squeeze(-1) - old_log_prob[:, part]
        ratio, value = log_ratio.exp(), critic(obs[:, part]).squeeze(-1)
        v, gamma = value.detach(), discount[:, part]
        rho = ratio.detach().clamp(max=1.0)
        x = (rho * (reward[:, part] + gamma * v[1:] - v[:-1])).numpy()  # becomes vs - V in place
        trace = (0.95 * gamma * rho).numpy()
        for t in range(rows - 2, -1, -1):
            x[t] += trace[t] * x[t + 1]
        target = v[:-1] + torch.from_numpy(x)
        advantage = reward[:, part] + gamma * torch.cat([target[1:], v[-1:]]) - v[:-1]
        surrogate = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage).sum()
        entropy = -(log_p.exp() * log_p).sum()
        return 0.5 * (value[:-1] - target).square().sum() - surrogate - 0.01 * entropy

    def update() -> None:
        optimizer.zero_grad()
        for i in range(0, columns, width):
            (chunk_loss(slice(i, i + width)) / batch_size).backward()
        optimizer.step()

    return seconds_of(update) / batch_size * 1e6

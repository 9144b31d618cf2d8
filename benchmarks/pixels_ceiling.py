"""Upper bound of pixels.py: cost of emulation, inference and training without waiting."""

from __future__ import annotations

import itertools
import multiprocessing
import statistics
from collections.abc import Callable
from typing import Any

import ceiling

from headrace.processes import keep_freed_memory, num_cores

TIMEOUT_S = 600.0
_CHUNKS = (64, 128, 256)  # steps per training chunk


def measure_ceiling(request: dict[str, Any]) -> dict[str, Any]:
    """Return microseconds per step of each part and variant, and ``sps`` on all cores.

    ``sps`` counts the cheapest variants.
    """
    cores, context = num_cores(), multiprocessing.get_context("spawn")
    together = context.Barrier(cores)
    with context.Pool(cores, _be_one_of, (together,)) as pool:
        each = pool.map(_parts, [request] * cores, chunksize=1)
    parts = {
        part: {way: statistics.fmean(one[part][way] for one in each) for way in ways}
        for part, ways in each[0].items()
    }
    step_us = sum(min(costs.values()) for costs in parts.values())
    return {"sps": cores * 1e6 / step_us, "us_per_step": parts}


def _be_one_of(together: Any) -> None:
    global _together
    _together = together


def _parts(request: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Measure the costs per step on this core while the others do the same."""
    import torch

    from headrace.nn.packed_weights import can_pack

    torch.set_num_threads(1)
    keep_freed_memory()
    num_envs = request["envs"] // request["actors"]
    ways: dict[str, dict[str, Callable[[], Any]]] = {"emulation": {}, "acting": {}, "learning": {}}
    ways["emulation"]["ale-py"] = _emulation(num_envs)
    counts = {"emulation": num_envs, "acting": num_envs, "learning": request["minibatch"]}
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        ways["acting"][name] = _acting(num_envs, dtype)
        if dtype == torch.bfloat16 and can_pack(torch.device("cpu")):
            ways["acting"]["bfloat16, by patches, packed"] = _acting(num_envs, dtype, True)
        for steps in _CHUNKS:
            learn = _learning(request["minibatch"], min(steps, request["minibatch"]), dtype)
            ways["learning"][f"{name}, chunks of {steps}"] = learn
    for steps in _CHUNKS:
        learn = _learning(
            request["minibatch"], min(steps, request["minibatch"]), torch.bfloat16, True
        )
        ways["learning"][f"bfloat16, by patches, chunks of {steps}"] = learn
    found: dict[str, dict[str, float]] = {}
    for part, calls in ways.items():
        found[part] = {}
        for way, call in calls.items():
            _together.wait(TIMEOUT_S)
            found[part][way] = 1e6 * ceiling.seconds_of(call) / counts[part]
    return found


def _emulation(num_envs: int) -> Callable[[], Any]:
    from headrace import make_vec
    from headrace.recipes.atari import PROTOCOL

    envs = make_vec("ALE/Pong-v5", num_envs, "native", PROTOCOL)
    envs.action_space.seed(0)
    actions = itertools.cycle([envs.action_space.sample() for _ in range(100)])
    envs.reset(seed=0)
    return lambda: envs.step(next(actions))


def _acting(num_envs: int, dtype: Any, is_packed: bool = False) -> Callable[[], Any]:
    import torch
    from atari_ppo import Agent

    from headrace.nn.packed_weights import PackedNetwork
    from headrace.nn.patches import PatchConv2d, patches

    agent = Agent(6).to(dtype)
    torso: Any = agent.torso
    if is_packed:
        torso[0] = PatchConv2d(4, 32, 8, stride=4)
        torso[0].scale = 1 / 255
        torso = PackedNetwork(torso)
        torso.pack()
    obs = torch.randint(0, 256, (num_envs, 4, 84, 84), dtype=torch.uint8)

    @torch.inference_mode()
    def act() -> Any:
        x = patches(obs, 4).to(dtype) if is_packed else obs.to(dtype).div_(255.0)
        logits = agent.policy(torso(x)).float()
        return (logits - torch.empty_like(logits).exponential_().log_()).argmax(-1)

    return act


def _learning(size: int, chunk: int, dtype: Any, by_patches: bool = False) -> Callable[[], Any]:
    """Run forward, loss and backward of a minibatch in chunks, and a step of Adam."""
    import torch
    from atari_ppo import Agent

    from headrace.nn.patches import PatchConv2d, patches

    agent, last = Agent(6), torch.channels_last
    if by_patches:
        agent.torso[0] = PatchConv2d(4, 32, 8, stride=4)
        agent.torso[0].scale = 1 / 255
    order = torch.contiguous_format if dtype == torch.bfloat16 else last
    optimizer = torch.optim.Adam(agent.parameters(), lr=1e-6, fused=True)
    obs = torch.randint(0, 256, (size, 4, 84, 84), dtype=torch.uint8)
    action, advantage, target = torch.randint(6, (size, 1)), torch.randn(size), torch.randn(size)

    def update() -> None:
        optimizer.zero_grad()
        for at in (slice(i, i + chunk) for i in range(0, size, chunk)):
            if by_patches:
                x = patches(obs[at], 4).to(dtype)
            else:
                x = obs[at].to(dtype, memory_format=order).div_(255.0)
            with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
                hidden = agent.torso(x)
            hidden = hidden.float()
            log_p, value = agent.policy(hidden).log_softmax(-1), agent.value(hidden).flatten()
            gain = log_p.gather(-1, action[at]).flatten() * advantage[at] - 0.01 * log_p.mean(-1)
            loss = (0.5 * (value - target[at]).square() - gain).sum() / size
            loss.backward()
        torch.nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()

    return update

"""Resolves ``precision="auto"`` for image networks, and warns if the chosen precision is slower."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from headrace.actors.sizes import AUTO
from headrace.config import Config
from headrace.learner.chunks import max_steps
from headrace.learner.step_costs import example, step_cost
from headrace.nn.image_precision import Precision, bfloat16_modules
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.processes import num_cores
from headrace.rundir import checkpoint
from headrace.types import Group

_IMAGES = 32  # largest batch of the benchmark; small ones overstate the cost of casting weights
_MOST_ON_GPU = 1024  # likewise; small batches only measure kernel launches
_ROUNDS, _ENOUGH_S = 5, 0.3
_GAIN, _LOSS = 0.85, 1.1  # bfloat16 must take at most these shares: in total, and of each part
_CLEAR = 1.25  # one round is enough this far from the threshold


class BFloat16Share(NamedTuple):
    """Time with bfloat16 relative to float32."""

    acting: float
    learning: float
    both: float  # their sum, or the longer one where they run concurrently


def settle(
    config: Config, policy: AnyPolicy, group: Group, notify: Callable[[str], None]
) -> Config:
    """Set the policy's precision and return the config with ``precision`` resolved.

    Rank 0 decides. Networks without images, resumed runs and ``deterministic`` runs are decided
    without measuring; ``deterministic`` uses float32 unless bfloat16 is set explicitly.

    Args:
        notify: called with one line about the choice, or a warning if it is slow.
    """
    one = policy.alike if isinstance(policy, MultiPolicy) else policy
    chosen, line = _chosen(config, one) if group.rank == 0 else ("float32", "")
    if group.size > 1:
        chosen = group.broadcast(chosen)
    if line:
        notify(line)
    policy.compute_in(chosen)
    return replace(config, precision=chosen)


def _chosen(config: Config, policy: Policy) -> tuple[Precision, str]:
    precision: str = config.precision
    if precision == "float32":
        return "float32", ""
    if not _has_images(policy, precision):
        useless = "warning: precision=bfloat16 has no effect: this network has no convolutions"
        return "float32", useless if precision != AUTO else ""
    if precision == AUTO and config.resume:
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "bfloat16" if saved.get("precision") == "bfloat16" else "float32", ""
    if precision == AUTO and config.deterministic:
        return "float32", "auto: float32 for images (deterministic=True skips the measurement)"
    share, apart = _measured(config, policy), config.device != "cpu"
    costs = f"acting takes {share.acting:.2f} of its time, learning {share.learning:.2f}"
    costs += f", together {share.both:.2f}" if apart else ""
    if precision != AUTO:
        slow = f"warning: precision=bfloat16 is slower here than float32: {costs}"
        return "bfloat16", slow if share.both > 1 else ""
    if _against(share, apart) <= 1:
        return "bfloat16", f"auto: bfloat16 for images (compared with float32, {costs})"
    return "float32", f"auto: float32 for images (in bfloat16 {costs})"


def _has_images(policy: Policy, precision: str) -> bool:
    """Return True if the network has convolutions or, unless "auto", any bfloat16 layer."""
    if not bfloat16_modules(policy):
        return False
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return precision != AUTO or any(isinstance(part, convolutions) for part in policy.modules())


def _measured(config: Config, policy: Policy) -> BFloat16Share:
    minibatches = getattr(config.algo, "minibatches", 1)
    passes = config.algo.steps_per_batch / minibatches
    if config.device == "cpu":
        return measured(policy, "cpu", passes)
    share, shm = config.per_learner, config.transport == "shm"
    images = min(_MOST_ON_GPU, -(-share.resolved_batch_size // minibatches))
    actors = min(share.num_actors, num_cores()) if shm else 1
    return measured(policy, config.device, passes, images, actors, shm and config.algo.max_lag > 0)


def measured(
    policy: Policy, device: str, passes: float = 1.0, images: int = _IMAGES,
    actors: int = 1, at_once: bool = False,
) -> BFloat16Share:  # fmt: skip
    """Measure bfloat16's share of float32's time: acting on the CPU, learning on the device.

    Precisions alternate on a few images, and the fastest round of each counts, so that other load
    on the machine hardly matters.

    Args:
        passes: optimization passes over each sample.
        images: size of a GPU minibatch.
        actors: number of actors that act concurrently, with a GPU learner.
        at_once: acting and learning run concurrently.
    """
    acting, learning = copy.deepcopy(policy).cpu(), copy.deepcopy(policy).to(device)
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    best = {precision: [float("inf")] * 2 for precision in precisions}
    few, begun = max_steps(step_cost(policy), _IMAGES), time.perf_counter()
    many, apart = (few, False) if device == "cpu" else (images, True)
    for turn in range(1 + _ROUNDS):
        for precision in precisions:
            act = act_s(acting, few, precision) / few / actors
            step_s = act, passes * learn_s(learning, many, precision) / many
            if turn:  # the first round warms up
                best[precision] = [min(*x) for x in zip(best[precision], step_s, strict=True)]
        late = time.perf_counter() - begun > _ENOUGH_S
        unclear = 1 / _CLEAR < _against(share := _share(best, at_once), apart) < _CLEAR
        if turn and (late or not unclear):
            break
    return share


def _share(seconds: dict[Precision, list[float]], at_once: bool) -> BFloat16Share:
    """Compare the seconds per step of acting and learning."""
    (whole, half), time_of = seconds.values(), max if at_once else sum
    return BFloat16Share(half[0] / whole[0], half[1] / whole[1], time_of(half) / time_of(whole))


def _against(share: BFloat16Share, apart: bool) -> float:
    """Return a score that favours bfloat16 up to 1. ``apart``: a GPU learns."""
    parts = () if apart else (share.acting / _LOSS, share.learning / _LOSS)
    return max((share.both / _GAIN, *parts))


def act_s(policy: Policy, num: int, precision: Precision) -> float:
    """Measure the seconds that a policy needs to act on ``num`` rows; on a CPU, CPU time."""
    policy.compute_in(precision)
    device = policy.policy_head.weight.device
    clock = time.thread_time if device.type == "cpu" else _synchronized
    inputs = tree.map_leaves(lambda x: x[0], example(policy, num))
    first, core = torch.zeros(num, dtype=torch.bool, device=device), policy.initial_core(num)
    with torch.inference_mode(), policy.frozen_weights():
        begun = clock()
        params, _ = policy.act(tree.map_leaves(lambda x: x.to(device), inputs), first, core)
        params.cpu()
        return clock() - begun


def learn_s(policy: Policy, num: int, precision: Precision) -> float:
    """Measure the seconds of a gradient on ``num`` rows; on a CPU, CPU time."""
    policy.compute_in(precision)
    parameters = [p for p in policy.parameters() if p.requires_grad]
    device = parameters[0].device
    inputs = tree.map_leaves(lambda x: x.to(device), example(policy, num))
    first = torch.zeros(1, num, dtype=torch.bool, device=device)
    clock = time.thread_time if device.type == "cpu" else _synchronized
    with torch.enable_grad():
        begun = clock()
        params, value, _ = policy(inputs, first, policy.initial_core(num))
        total: Any = params.sum() + value.sum()
        torch.autograd.grad(total, parameters, allow_unused=True)
        return clock() - begun


def _synchronized() -> float:
    torch.cuda.synchronize()
    return time.perf_counter()

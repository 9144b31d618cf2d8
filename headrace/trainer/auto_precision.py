"""The precision of images that is left to "auto", and whether the one that is given is slower."""

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
from headrace.nn.image_precision import Precision, halved
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.policy import Policy
from headrace.ops import tree
from headrace.processes import num_cores
from headrace.rundir import checkpoint
from headrace.types import Group

_IMAGES = 32  # of the trial, at most: fewer give the weights' cast more than its share
_MOST_ON_GPU = 1024  # likewise; fewer are what it takes to begin, whatever the precision
_ROUNDS, _ENOUGH_S = 5, 0.3
_GAIN, _LOSS = 0.85, 1.1  # bfloat16 is taken below the one of the time, and neither part above
_CLEAR = 1.25  # times so far from what decides: one turn is enough


class BFloat16Share(NamedTuple):
    """Of float32's time: what bfloat16 takes."""

    acting: float
    learning: float
    both: float  # one after the other, or what takes longer where they go on at once


def settle(
    config: Config, policy: AnyPolicy, group: Group, notify: Callable[[str], None]
) -> Config:
    """The settings with a precision, which is also the policy's from now on.

    Rank 0 decides. Nothing is measured for a network without images, a run that is resumed, or one
    with ``deterministic``, which has float32 unless bfloat16 is asked for.

    Args:
        notify: called with a line about what was chosen, or isn't fast.
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
    wanted: str = config.precision
    if wanted == "float32":
        return "float32", ""
    if not _has_images(policy, wanted):
        useless = "warning: precision=bfloat16 is for convolutions, and this network has none"
        return "float32", useless if wanted != AUTO else ""
    if wanted == AUTO and config.resume:
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "bfloat16" if saved.get("precision") == "bfloat16" else "float32", ""
    if wanted == AUTO and config.deterministic:
        return "float32", "auto: float32 for images (nothing is measured with deterministic)"
    share, apart = _measured(config, policy), config.device != "cpu"
    told = f"acting takes {share.acting:.2f} of its time, learning {share.learning:.2f}"
    told += f", together {share.both:.2f}" if apart else ""
    if wanted != AUTO:
        slow = f"warning: precision=bfloat16 is slower here than float32: {told}"
        return "bfloat16", slow if share.both > 1 else ""
    if _against(share, apart) <= 1:
        return "bfloat16", f"auto: bfloat16 for images (compared with float32, {told})"
    return "float32", f"auto: float32 for images (in bfloat16 {told})"


def _has_images(policy: Policy, wanted: str) -> bool:
    """Whether there is something for bfloat16; an own torso without convolutions has to ask."""
    if not halved(policy):
        return False
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    return wanted != AUTO or any(isinstance(part, convolutions) for part in policy.modules())


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
    """What bfloat16 takes of float32's time, to act on the CPU and to learn on the device.

    A few images, turn by turn, and of each precision the quickest turn: a busy machine says what a
    quiet one does.

    Args:
        passes: over each sample. images: that a GPU learns from at a time.
        actors: who act at a time, beside a GPU. at_once: while it learns.
    """
    acting, learning = copy.deepcopy(policy).cpu(), copy.deepcopy(policy).to(device)
    precisions: tuple[Precision, ...] = ("float32", "bfloat16")
    best = {precision: [float("inf")] * 2 for precision in precisions}
    few, begun = max_steps(step_cost(policy), _IMAGES), time.perf_counter()
    many, apart = (few, False) if device == "cpu" else (images, True)
    for turn in range(1 + _ROUNDS):
        for precision in precisions:
            act = act_s(acting, few, precision) / few / actors
            took = act, passes * learn_s(learning, many, precision) / many
            if turn:  # the first one is slow, whatever is measured
                best[precision] = [min(*x) for x in zip(best[precision], took, strict=True)]
        late = time.perf_counter() - begun > _ENOUGH_S
        unclear = 1 / _CLEAR < _against(share := _share(best, at_once), apart) < _CLEAR
        if turn and (late or not unclear):
            break
    return share


def _share(seconds: dict[Precision, list[float]], at_once: bool) -> BFloat16Share:
    """Of the seconds that acting and learning take a step."""
    (whole, half), time_of = seconds.values(), max if at_once else sum
    return BFloat16Share(half[0] / whole[0], half[1] / whole[1], time_of(half) / time_of(whole))


def _against(share: BFloat16Share, apart: bool) -> float:
    """What speaks against bfloat16; up to 1 it is taken. ``apart``: a GPU learns."""
    parts = () if apart else (share.acting / _LOSS, share.learning / _LOSS)
    return max((share.both / _GAIN, *parts))


def act_s(policy: Policy, num: int, precision: Precision) -> float:
    """Seconds in which a policy acts on ``num`` rows; on a CPU, of the processor."""
    policy.compute_in(precision)
    device = policy.policy_head.weight.device
    clock = time.thread_time if device.type == "cpu" else _synchronized
    inputs = tree.map_leaves(lambda x: x[0], example(policy, num))
    first, core = torch.zeros(num, dtype=torch.bool, device=device), policy.initial_core(num)
    with torch.inference_mode(), policy.still():
        begun = clock()
        params, _ = policy.act(tree.map_leaves(lambda x: x.to(device), inputs), first, core)
        params.cpu()
        return clock() - begun


def learn_s(policy: Policy, num: int, precision: Precision) -> float:
    """Seconds that the gradient of ``num`` rows takes; on a CPU, of the processor."""
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

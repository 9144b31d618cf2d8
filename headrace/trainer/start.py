"""How a run begins, however many learners train."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headrace.actors.fleet import start_fork_server
from headrace.actors.sizes import AUTO, Sizes
from headrace.config import Config
from headrace.config.eval_envs import resolved
from headrace.envs.first_look import EnvProber, first_look
from headrace.envs.names import env_name, resolve
from headrace.envs.probe import Probe, check_evaluated
from headrace.envs.scripts import refuse_training
from headrace.errors import ConfigError, require, wrapper
from headrace.learner.hogwild import SharedModel
from headrace.learner.multi_policy_learner import AnyLearner, MultiPolicyLearner
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import full_float32, torch_threads
from headrace.processes.ray_connection import check_installed
from headrace.rundir import checkpoint
from headrace.rundir.directories import check, default_run_dir
from headrace.rundir.league_run import check_opponents
from headrace.spaces import walk
from headrace.spaces.images import image_shape, is_image
from headrace.trainer import auto_inference, auto_precision
from headrace.trainer.auto_sizes import choose, sized
from headrace.trainer.fine_tuning import check_init, take_over
from headrace.trainer.policies import check_minibatches, new_learner, new_policy, roster
from headrace.types import Group

_LARGE = 10_000_000  # parameters


def begin(
    config: Config,
    needs_processes: bool,
    group: Group,
    notify: Callable[[str], None],
    checked: bool = False,
) -> tuple[Config, Probe, Path]:
    """Look at the environment while the fork server, if it is needed, gets ready.

    Args:
        needs_processes: actors are processes, so the environment is probed in one as well.
        group: of the learners; rank 0 decides what is left to "auto".
        notify: called with a line of text about that.
        checked: whoever started this process has seen that the run directory can be used.

    Returns:
        the settings with all of them decided, what the environment turned out to be, and the run
        directory.

    Raises:
        ConfigError: there is no such environment, or settings don't fit each other (nothing was
            started), or it can't be made, or ``init_from`` doesn't fit it.
        CheckpointError: the run directory can't be used, or there is no run to resume or to begin
            from.
    """
    refuse_training()
    config = config.settled
    env = resolve(config.environment, config.wrappers)  # complains before anything is started
    if not config.is_sized:
        choose(config, None, cores=1)  # so does this
    run_dir = Path(config.run_dir or default_run_dir(env_name(env), config.algo_name))
    if group.rank == 0 and not checked:
        check(run_dir, config.resume, config.overwrite)
    run_dir, config = run_dir.absolute(), in_full(config)
    if config.cluster is not None:
        check_installed(f"cluster={config.cluster!r}")
    if needs_processes:
        start_fork_server()
    index = group.rank + 1 if group.size > 1 else 0  # the group's parent probes as number 0
    with first_look(needs_processes, config.seed, config.actor_timeout_s, index) as look:
        return *_begun(config, group, notify, run_dir, look), run_dir


def in_full(config: Config) -> Config:
    """Make paths in the settings absolute, so that environments can change the directory."""
    named = {name: getattr(config, name) for name in ("run_dir", "init_from")}
    full: Any = {k: str(Path(v).absolute()) for k, v in named.items() if v}
    return replace(config, **full)


def _begun(
    config: Config, group: Group, notify: Callable[[str], None], run_dir: Path, look: EnvProber
) -> tuple[Config, Probe]:
    made = config.environment, config.engine, config.env_kwargs, config.seed, config.wrappers
    found = look.probe(*made, rank=group.rank)
    roster(config, found)  # complains before anything is measured
    if found.mask_source and group.rank == 0:
        notify(f"action masks: from {found.mask_source}")
    if config.num_learners == 1 and config.envs_per_actor != AUTO:
        check_agents(config, found)
    was_auto = config.stacked_frames == "auto"
    held: Any = held_stacks(config, found) if group.rank == 0 else ""
    held = group.broadcast(held) if group.size > 1 else held
    config = replace(config, engine=found.engine, stacked_frames=held)
    if group.rank == 0:
        if config.eval_env_kwargs and config.eval_episodes:
            check_evaluated(found, config.evaluated_kwargs, config.seed, look.probe)
        for own, one in resolved(config, found.engine).items():
            how = look.probe, one.env, one.engine, f"eval_envs[{own!r}]"
            check_evaluated(found, one.env_kwargs, config.seed, *how)
        check_init(config, found, run_dir)
    chosen, line = sized(config, found, run_dir, look) if group.rank == 0 else (config, "")
    if line:
        notify(line)
    if was_auto and config.stacked_frames == "once" and group.rank == 0:
        notify("auto: stacks of images are stored as single frames (a quarter of the memory)")
    if not config.is_sized:
        chosen = replace(config, **Sizes(*group.broadcast(list(chosen.sizes)))._asdict())
    check_agents(chosen, found)
    check_opponents(chosen, found, run_dir)
    check_minibatches(chosen, found)
    return chosen, found


def check_agents(config: Config, found: Probe) -> None:
    """Raise ConfigError unless every actor steps whole games; opponents fill up any."""
    alone, count = config.num_learners == 1, found.num_columns
    each = int((config if alone else config.per_learner).envs_per_actor)
    if each % count == 0 or config.mixture is not None:
        return
    low = each // count * count
    near = " or ".join(str(x) for x in (low, low + count) if x > 0)
    learner = "" if alone else f" of an actor of {config.num_learners} learners"
    raise ConfigError(
        f"envs_per_actor={each}{learner} must be a multiple of {count}, the agents of a game of "
        f"{env_name(found.env)} ({_named(found.agents)}), each of which counts as one environment; "
        f"nearest: {near}"
    )


def _named(agents: tuple[str, ...]) -> str:
    shown = ", ".join(agents[:6])
    return shown if len(agents) <= 6 else f"{shown} … ({len(agents)})"


def held_stacks(config: Config, found: Probe) -> Any:
    """How stacks of pictures are held: in a resumed run as before, unless it is given.

    Raises:
        ConfigError: there are none that could be held once.
    """
    if config.resume and config.stacked_frames == "auto":
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "once" if saved.get("stacked_frames") == "once" else "whole"
    valid = f"'auto' or 'whole' with {env_name(found.env)}, which shows no stacks of its pictures"
    require(found.stacks or config.stacked_frames != "once", "stacked_frames", "once", valid)
    if config.stacked_frames != "auto":
        return config.stacked_frames
    return "once" if found.stacks else "whole"


def built(
    config: Config, found: Probe, group: Group, notify: Callable[[str], None]
) -> tuple[Config, AnyPolicy, AnyLearner]:
    """The policy and one of its learners, the same weights on each; in which precision, who acts.

    Args:
        notify: called with a line about either choice, unless that is plain.
    """
    device = config.device
    if device == "cuda" and group.size > 1:
        device = f"cuda:{group.local_rank % max(1, torch.cuda.device_count())}"  # Ray shows it one
    full_float32(device)  # for the trials, too
    if device != "cpu":
        torch.backends.cudnn.deterministic = config.deterministic
    # One thread: the bits of the initial weights must not depend on the number of cores.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(config.seed)
        policy = new_policy(config, found)
        take_over(config, policy, group)
        found.check_step()
        config = auto_precision.settle(config, policy, group, notify)
        config = auto_inference.settle(config, policy, found, group, notify)
        learner = new_learner(config, policy, device, group)
    if config.compile and learner.by_hand and group.rank == 0:
        notify(
            "warning: compile=True does nothing here, where gradients are computed by hand "
            "(fused=False has them computed by autograd)"
        )
    elif config.compile:
        policy.compile_torsos()
    return config, policy, learner


def large_network(config: Config, policy: AnyPolicy, is_game: bool = False) -> str | None:
    """A warning where the default network is larger than images of a usual size make it.

    Args:
        is_game: of several agents, which nothing of Gymnasium's wraps.
    """
    size = sum(parameter.numel() for parameter in policy.parameters())
    if size <= _LARGE or config.network.torso is not None:
        return None
    leaves = walk.leaves(policy.inputs.observation_space)
    layout = policy.network.image_layout
    sides = [image_shape(leaf, layout)[1:] for _, leaf in leaves if is_image(leaf)]
    height, width = max(sides, key=math.prod, default=(0, 0))
    remedy = "a smaller network"
    if height * width > 84 * 84:
        resized = wrapper('ResizeObservation:{"shape":[84,84]}')
        how = "in a custom callable" if is_game else resized
        remedy = f"smaller images than {height} x {width}: {how}"
    return (
        f"warning: the network has {size / 1e6:.0f} million parameters, which learn slowly and "
        f"travel to every actor; try {remedy}"
    )


def shared_model(config: Config, learner: AnyLearner) -> SharedModel | None:
    """What actors apply gradients to, if they compute any."""
    if not config.algo.learns_in_actors or isinstance(learner, MultiPolicyLearner):
        return None
    sizes = config.num_actors, config.rollouts_per_update
    return SharedModel(learner, *sizes, shared=config.transport == "shm")

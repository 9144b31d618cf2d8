"""Starts a run: resolves settings, probes the environment, builds policy and learner."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from headrace.actors.fleet import start_fork_server
from headrace.actors.sizes import AUTO, SIZES, Sizes
from headrace.config import Config
from headrace.config.eval_envs import resolved
from headrace.envs.first_look import EnvProber, first_look
from headrace.envs.names import env_name, resolve
from headrace.envs.probe import Probe, check_evaluated
from headrace.envs.scripts import refuse_training
from headrace.envs.suggestions import newer_version
from headrace.errors import ConfigError, require, wrapper
from headrace.learner.multi_policy_learner import AnyLearner
from headrace.native.library import functions
from headrace.nn.multi_policy import AnyPolicy
from headrace.processes import full_float32, torch_threads
from headrace.processes.ray_package import ray_package
from headrace.rundir import checkpoint
from headrace.rundir.directories import check, default_run_dir
from headrace.rundir.league_run import check_opponents
from headrace.spaces import walk
from headrace.spaces.images import image_shape, is_image
from headrace.trainer import auto_inference, auto_precision, symbols
from headrace.trainer.auto_sizes import choose, sized
from headrace.trainer.fine_tuning import check_init, take_over
from headrace.trainer.policies import check_minibatches, new_learner, new_policy, policy_mapping
from headrace.types import Group

_LARGE = 10_000_000  # parameters


def begin(
    config: Config,
    needs_processes: bool,
    group: Group,
    notify: Callable[[str], None],
    checked: bool = False,
) -> tuple[Config, Probe, Path]:
    """Probe the environment and resolve the settings while the fork server starts.

    Args:
        needs_processes: actors are processes, so the environment is probed in one as well.
        group: group of the learners; rank 0 resolves "auto" settings.
        notify: called with one line about each choice.
        checked: the parent process has checked the run directory.

    Returns:
        the resolved settings, the probe of the environment, and the run directory.

    Raises:
        ConfigError: the environment doesn't exist or can't be made, settings conflict (before any
            process is started), or ``init_from`` doesn't fit.
        CheckpointError: the run directory can't be used, or the run to resume or to initialize
            from doesn't exist.
    """
    refuse_training()
    config = config.settled
    env = resolve(config.environment, config.wrappers)  # raises before any process starts
    if not config.is_sized:
        choose(config, None, cores=1)  # likewise
    run_dir = Path(config.run_dir or default_run_dir(env_name(env), config.algo_name))
    if group.rank == 0 and not checked:
        check(run_dir, config.resume, config.overwrite)
    run_dir, config = run_dir.absolute(), in_full(config)
    if config.cluster is not None:
        ray_package("connection").check_installed(f"cluster={config.cluster!r}")
    if needs_processes:
        start_fork_server()
    index = group.rank + 1 if group.size > 1 else 0  # the group's parent probes as number 0
    with first_look(needs_processes, config.seed, config.actor_timeout_s, index) as look:
        return *_probe_and_resolve(config, group, notify, run_dir, look), run_dir


def in_full(config: Config) -> Config:
    """Make paths in the settings absolute, so that environments can change the directory."""
    named = {name: getattr(config, name) for name in ("run_dir", "init_from")}
    full: Any = {k: str(Path(v).absolute()) for k, v in named.items() if v}
    return replace(config, **full)


def _probe_and_resolve(
    config: Config, group: Group, notify: Callable[[str], None], run_dir: Path, look: EnvProber
) -> tuple[Config, Probe]:
    made = config.environment, config.engine, config.env_kwargs, config.seed, config.wrappers
    probe = look.probe(*made, rank=group.rank)
    policy_mapping(config, probe)  # raises before anything is measured
    if group.rank == 0 and (newer := newer_version(env_name(probe.env))):
        notify(f"warning: {env_name(probe.env)} is an old version; the newest is {newer}")
    if probe.mask_source and group.rank == 0:
        notify(f"action masks: from {probe.mask_source}")
    if config.num_learners == 1 and config.envs_per_actor != AUTO:
        check_agents(config, probe)
    config = symbols.settle(config, probe, group, notify)
    was_auto = config.stacked_frames == "auto"
    mode: Any = held_stacks(config, probe) if group.rank == 0 else ""
    mode = group.broadcast(mode) if group.size > 1 else mode
    config = replace(config, engine=probe.engine, stacked_frames=mode)
    if group.rank == 0:
        if config.eval_env_kwargs and config.eval_episodes:
            check_evaluated(probe, config.evaluated_kwargs, config.seed, look.probe)
        for own, one in resolved(config, probe.engine).items():
            how = look.probe, one.env, one.engine, f"eval_envs[{own!r}]"
            check_evaluated(probe, one.env_kwargs, config.seed, *how)
        check_init(config, probe, run_dir)
    chosen, line = sized(config, probe, run_dir, look) if group.rank == 0 else (config, "")
    if line:
        notify(line)
    if was_auto and config.stacked_frames == "once" and group.rank == 0:
        notify("auto: stacks of images are stored as single frames (a quarter of the memory)")
    if not config.is_sized:
        automatic = automatic_sizes(config, run_dir)
        sizes = Sizes(*group.broadcast(list(chosen.sizes)))._asdict()
        chosen = replace(config, automatic=automatic, **sizes)
    check_agents(chosen, probe)
    check_opponents(chosen, probe, run_dir)
    check_minibatches(chosen, probe)
    return chosen, probe


def automatic_sizes(config: Config, run_dir: Path) -> tuple[str, ...]:
    """Return the names of sizes that are automatic; those of a resumed run were so at its start."""
    names = tuple(name for name in SIZES if getattr(config, name) == AUTO)
    if not config.resume:
        return names
    saved = checkpoint.read_config(checkpoint.find(run_dir))["config"].get("automatic", ())
    return tuple(x for x in SIZES if x in saved and (x in names or x in config.automatic))


def check_agents(config: Config, probe: Probe) -> None:
    """Raise ConfigError unless every actor steps whole games; opponents fill up the rest."""
    alone, count = config.num_learners == 1, probe.num_columns
    each = int((config if alone else config.per_learner).envs_per_actor)
    if each % count == 0 or config.mixture is not None:
        return
    low = each // count * count
    near = " or ".join(str(x) for x in (low, low + count) if x > 0)
    learner = "" if alone else f" of an actor of {config.num_learners} learners"
    raise ConfigError(
        f"envs_per_actor={each}{learner} must be a multiple of {count}, the agents of a game of "
        f"{env_name(probe.env)} ({_named(probe.agents)}), each of which counts as one environment; "
        f"nearest: {near}"
    )


def _named(agents: tuple[str, ...]) -> str:
    shown = ", ".join(agents[:6])
    return shown if len(agents) <= 6 else f"{shown} … ({len(agents)})"


def held_stacks(config: Config, probe: Probe) -> Any:
    """Resolve ``stacked_frames``: "once" or "whole"; a resumed run keeps its value.

    Raises:
        ConfigError: it is "once", but the environment has no frame stacks.
    """
    if config.resume and config.stacked_frames == "auto":
        saved = checkpoint.read_config(checkpoint.find(Path(str(config.run_dir))))["config"]
        return "once" if saved.get("stacked_frames") == "once" else "whole"
    valid = f"'auto' or 'whole' with {env_name(probe.env)}, whose observations are not frame stacks"
    require(probe.stacks or config.stacked_frames != "once", "stacked_frames", "once", valid)
    if config.stacked_frames != "auto":
        return config.stacked_frames
    return "once" if probe.stacks else "whole"


def built(
    config: Config, probe: Probe, group: Group, notify: Callable[[str], None]
) -> tuple[Config, AnyPolicy, AnyLearner]:
    """Build the policy and the learner, with equal weights on each rank, precision and inference.

    Args:
        notify: called with one line about each choice that isn't obvious.
    """
    device = config.device
    if device == "cuda" and group.size > 1:
        device = (
            f"cuda:{group.local_rank % max(1, torch.cuda.device_count())}"  # Ray exposes only one
        )
    full_float32(device)  # also for the benchmarks
    if device != "cpu":
        torch.backends.cudnn.deterministic = config.deterministic
    # One thread: the bits of the initial weights must not depend on the number of cores.
    with torch.random.fork_rng(devices=[]), torch_threads(1):
        torch.manual_seed(config.seed)
        policy = new_policy(config, probe)
        take_over(config, policy, group)
        probe.check_step()
        config = auto_precision.settle(config, policy, group, notify)
        config = auto_inference.settle(config, policy, probe, group, notify)
        learner = new_learner(config, policy, device, group)
    if learner.by_hand and group.rank == 0 and functions(torch.float32) is None:
        notify(
            "note: gradients of small networks are computed by torch, which is slower: compiled "
            "functions are missing, out of date or off (HEADRACE_NATIVE=0); to build them, install "
            "headrace again with a C compiler"
        )
    if config.compile and learner.by_hand and group.rank == 0:
        notify(
            "warning: compile=True has no effect with hand-written gradients "
            "(fused=False uses autograd)"
        )
    elif config.compile:
        policy.compile_torsos()
    return config, policy, learner


def large_network(config: Config, policy: AnyPolicy, is_game: bool = False) -> str | None:
    """Return a warning if the default network is larger than for images of the usual size.

    Args:
        is_game: a multi-agent environment, which Gymnasium wrappers can't wrap.
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
        f"warning: the network has {size / 1e6:.0f} million parameters, which train slowly and "
        f"are sent to every actor; try {remedy}"
    )

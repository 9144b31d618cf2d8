"""Validates combinations of settings, and settings that depend on this machine."""

from __future__ import annotations

import os
import shutil
import sys
import warnings
from typing import Any

import torch

from headrace.actors import policy_lag
from headrace.actors.weight_sync import sync_rule
from headrace.config import eval_envs
from headrace.envs import tasks
from headrace.envs.info_metrics import chosen_in
from headrace.errors import ConfigError, require, shown
from headrace.games.opponent_mix import LATEST, OpponentMix
from headrace.nn.policy_mapping import SHARED, parse_policies
from headrace.processes import check_device
from headrace.transport.request_channel import MAX_CALLERS

_MAX_ENVS = 2**20  # in all actors


def check_together(config: Any) -> None:
    """Raise ConfigError if the fields of a ``Config`` contradict each other."""
    both = config.resume and config.overwrite
    require(not both, "resume", True, "alone, without overwrite")
    valid = "None with resume, which continues with the run's own weights"
    require(config.init_from is None or not config.resume, "init_from", config.init_from, valid)
    _check_choices(config)
    _check_league(config)
    _check_policies(config)
    synchronous = config.algo.max_lag == 0
    config.sizes.check_batch(synchronous)
    _check_times(config)
    values = config.network.normalize_values
    if values is None:  # as in Config.settled
        values = config.scale_free and not config.algo.learns_in_actors
    tasks.check_network(config.tasks, config.network, values)
    tasks.check_shares(config.tasks, config.num_learners, config.sizes, config.min_actors)
    if config.num_learners > 1:
        _check_devices(config)
        config.algo.per_learner(config.num_learners)  # raises unless it can be divided
    color, sde = config.algo.noise_color, config.network.use_sde
    unused = color in (0.0, type(config.algo).noise_color)
    require(not sde or unused, "noise_color", color, "0 with use_sde, which replaces the noise")
    sync_rule(config.weight_sync, config.kl_threshold)
    if config.is_sized:
        _check_columns(config)
        _ = config.sync, config.per_learner  # raise if the rule or the shares are invalid
    eval_envs.check(config.eval_envs, config.eval_episodes)
    chosen_in(config.info_metrics)  # raises unless it names reductions
    for name in ("env_kwargs", "eval_env_kwargs"):
        _check_kwargs(name, getattr(config, name))


def whole_batch(config: Any) -> Any:
    """Return the batch size, rounded up to whole rollouts, with a warning if it changes.

    As in RLlib, an update of an asynchronous algorithm takes rollouts until it has enough steps.
    Sizes of "auto" are chosen to fit the batch size instead.
    """
    size, sizes, learners = config.batch_size, config.sizes, config.num_learners
    rounds = sizes.are_known and config.algo.max_lag > 0 and not config.tasks
    if not rounds or not isinstance(size, int) or size < 1:
        return size
    whole = sizes.whole_batch(learners)
    if whole != size:
        factors = " * ".join(f"{k}={v}" for k, v in sizes.factors(synchronous=False).items())
        each = f" for each of {learners} learners" if learners > 1 else ""
        warnings.warn(
            f"batch_size={size} is rounded up to {whole}, because an update takes whole rollouts "
            f"({factors} steps){each}",
            stacklevel=5,
        )
    return whole


def _check_league(config: Any) -> None:
    """Check settings of self-play."""
    opponents, exploit = config.opponents, config.exploit
    both = opponents is not None and exploit is not None
    require(not both, "opponents", opponents, "None with exploit, which is the only opponent")
    OpponentMix.of(opponents or LATEST)  # raises if it is invalid
    plays = opponents is not None or exploit is not None
    for name in ("league", "snapshot_every_steps", "snapshot_win_rate"):
        value = getattr(config, name)
        require(value is None or plays, name, value, "None without opponents (or exploit)")
    valid = "None with opponents or exploit, which play a single game"
    require(not (plays and config.tasks), "tasks", "…", valid)
    valid = "None with opponents or exploit, whose snapshots are on this machine"
    require(config.cluster is None or not plays, "cluster", config.cluster, valid)
    valid = "None with exploit, which plays a policy of another run"
    wins = config.snapshot_win_rate
    require(wins is None or exploit is None, "snapshot_win_rate", wins, valid)
    chance = config.deterministic and opponents is not None and config.league is not None
    valid = "False with a league that other runs may join at any time"
    require(not chance, "deterministic", True, valid)


def _check_policies(config: Any) -> None:
    """Check settings that several policies don't support."""
    if config.policies == SHARED:
        return
    parse_policies(config.policies)  # raises if it is invalid
    valid = "False with several policies, because actors don't have their features"
    require(not config.network.use_sde, "use_sde", True, valid)
    for name, alone, why in (
        ("tasks", (), "which belong to a game's agents"),
        ("opponents", None, "which play each other"),
        ("exploit", None, "which play each other"),
        ("init_from", None, "which start with their own weights"),
        ("num_learners", 1, "whose learners share one process"),
        ("cluster", None, "whose actors are processes of this machine"),
    ):
        valid = f"{alone!r} with policies={shown(config.policies)}, {why}"
        require(getattr(config, name) == alone, name, getattr(config, name), valid)
    valid = "'auto' or 'actor' with several policies, which each actor copies"
    require(config.inference != "shared", "inference", "shared", valid)


def _check_choices(config: Any) -> None:
    check_device(config.device)
    _check_compiler(config)
    _check_inference(config)
    _check_cluster(config)
    algo = config.algo
    for name, (only, why) in algo.only.items():
        value = getattr(config, name)
        require(value == only, name, value, f"{only!r} with {config.algo_name}, {why}")
    learns_in_actors = algo.learns_in_actors and config.network.normalize_values is True
    valid = f"None or False with {config.algo_name}, whose actors share no value targets"
    require(not learns_in_actors, "normalize_values", True, valid)
    if config.engine == "async" and config.transport != "serial":
        raise ConfigError(
            "engine='async' needs transport='serial': it starts a process per environment, "
            "and actors are processes already (use engine='sync' with more actors instead)"
        )


def _check_compiler(config: Any) -> None:
    cxx = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    valid = f"False without a C++ compiler: torch.compile calls {cxx}, which isn't on the PATH"
    require(not config.compile or shutil.which(cxx) is not None, "compile", True, valid)


def _check_inference(config: Any) -> None:
    """Check that shared inference is possible."""
    shared, valid = config.inference == "shared", "'auto' or 'actor' with "
    for refused, reason in (
        (config.transport == "serial", "transport='serial', where actors act in turn"),
        (config.algo.learns_in_actors, f"{config.algo_name}, whose actors train their weights"),
        (config.cluster is not None, "cluster, whose actors share no memory"),
        (config.deterministic, "deterministic, because timing decides which rows are batched"),
        (config.network.use_sde, "use_sde, whose noise needs features of the network"),
    ):
        require(not (shared and refused), "inference", "shared", valid + reason)


def _check_cluster(config: Any) -> None:
    """Check that actors can run on a cluster."""
    cluster = config.cluster
    for refused, reason in (
        (
            config.transport == "serial" and config.num_learners == 1,
            "transport='serial' and one learner, which acts in this process",
        ),
        (
            config.algo.learns_in_actors,
            f"{config.algo_name}, whose actors share the model's memory",
        ),
    ):
        require(cluster is None or not refused, "cluster", cluster, f"None with {reason}")
    least, most = config.min_actors, config.num_actors
    for refused, valid in (
        (cluster is None, "None without cluster"),
        (config.algo.max_lag == 0, f"None with {config.algo_name}, which waits for every actor"),
        (config.transport == "serial", "None with transport='serial', where learners act"),
        (config.is_sized and least is not None and least > most, f"at most {most} (num_actors)"),
    ):
        require(least is None or not refused, "min_actors", least, valid)


def _check_columns(config: Any) -> None:
    num_envs = config.num_actors * config.envs_per_actor
    valid = f"at most {_MAX_ENVS // config.num_actors} with num_actors={config.num_actors}"
    require(num_envs <= _MAX_ENVS, "envs_per_actor", config.envs_per_actor, valid)
    most = MAX_CALLERS * config.num_learners
    many = config.inference == "shared" and config.num_actors > most
    require(not many, "num_actors", config.num_actors, f"at most {most} with inference='shared'")
    if config.num_learners == 1:  # with several, each warns about its share
        policy_lag.warn_of_idle_actors(config.algo, config.sizes)
    columns = config.rollouts_per_update * config.envs_per_actor
    minibatches = getattr(config.algo, "minibatches", 1)
    if config.network.core is not None and minibatches > columns:
        raise ConfigError(
            f"minibatches={minibatches} is more than the {columns} environments of a learner's "
            "batch: a recurrent policy's minibatches are whole sequences of environments "
            f"(nearest: {columns})"
        )


def _check_times(config: Any) -> None:
    """Check settings that depend on timing against ``deterministic``."""
    limit, share, algo = config.max_rollout_seconds, config.preempt_fraction, config.algo
    deterministic, transport = config.deterministic, config.transport
    asynchronous, cuts = config.engine == "threads", limit is not None or share is not None
    valid = "False with engine='threads', where timing decides which rows are computed together"
    require(not (deterministic and asynchronous), "deterministic", True, valid)
    valid = "False where rollouts are cut short by time"
    require(not (deterministic and cuts), "deterministic", True, valid)
    valid = "False with stop_time_s, where schedules follow the clock"
    require(not (deterministic and config.stop_time_s), "deterministic", True, valid)
    if deterministic and algo.max_lag > 0 and transport != "serial":
        raise ConfigError(
            "deterministic=True needs a synchronous algorithm (a2c, ppo) or transport='serial': "
            f"{config.algo_name} with transport={transport!r} depends on timing"
        )
    valid = (
        "None with an asynchronous algorithm, whose learners don't wait for each other's rollouts"
    )
    require(share is None or algo.max_lag == 0, "preempt_fraction", share, valid)
    valid = "None without eval_interval and eval_episodes"
    watched = config.evaluates_while_training
    require(config.target_return is None or watched, "target_return", config.target_return, valid)


def _check_devices(config: Any) -> None:
    """Check that each learner on this machine has a GPU."""
    device, gpus, here = config.device, torch.cuda.device_count(), config.learners_here
    valid = "'cpu' or 'cuda' with several learners (each uses its own GPU)"
    require(device in ("cpu", "cuda"), "device", device, valid)
    valid = f"'cpu' with {here} learners on a machine of {gpus} GPU(s): each needs its own"
    enough = device == "cpu" or gpus >= here or config.cluster not in (None, "ray")
    require(enough, "device", device, valid)


def _check_kwargs(name: str, kwargs: dict[str, Any]) -> None:
    try:
        eval_envs.check_json(kwargs)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name}={shown(kwargs)} can't be written to config.json: {error}"
        ) from error

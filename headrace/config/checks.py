"""Settings of a run that contradict each other, or what there is here; each is valid by itself."""

from __future__ import annotations

import json
import os
import shutil
import sys
from typing import Any

import torch

from headrace.actors import policy_lag
from headrace.actors.weight_sync import sync_rule
from headrace.config import eval_envs
from headrace.envs import tasks
from headrace.envs.info_metrics import chosen_in
from headrace.errors import ConfigError, require, shown
from headrace.league.opponent_mix import LATEST, OpponentMix
from headrace.nn.policy_mapping import SHARED, mapping
from headrace.processes import check_device
from headrace.transport.request_channel import MAX_CALLERS

_MAX_ENVS = 2**20  # of all actors


def check_together(config: Any) -> None:
    """Raise ConfigError unless the fields of a ``Config`` fit each other, as far as is known."""
    both = config.resume and config.overwrite
    require(not both, "resume", True, "alone, without overwrite")
    valid = "None with resume, which goes on with the run's own weights"
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
        config.algo.per_learner(config.num_learners)  # raises unless it can be shared out
    sync_rule(config.weight_sync, config.kl_threshold)
    if config.is_sized:
        _check_columns(config)
        _ = config.sync, config.per_learner  # raise unless there is such a rule, and shares fit
    eval_envs.check(config.eval_envs, config.eval_episodes)
    chosen_in(config.info_metrics)  # raises unless it names reductions
    for name in ("env_kwargs", "eval_env_kwargs"):
        _check_kwargs(name, getattr(config, name))


def _check_league(config: Any) -> None:
    """What belongs to self-play, against what doesn't."""
    opponents, exploit = config.opponents, config.exploit
    both = opponents is not None and exploit is not None
    require(not both, "opponents", opponents, "None with exploit, which is the only opponent")
    OpponentMix.of(opponents or LATEST)  # raises unless it is one
    plays = opponents is not None or exploit is not None
    for name in ("league", "snapshot_every_steps", "snapshot_win_rate"):
        value = getattr(config, name)
        require(value is None or plays, name, value, "None without opponents (or exploit)")
    valid = "None with opponents or exploit, which play games of one kind"
    require(not (plays and config.tasks), "tasks", "…", valid)
    valid = "None with opponents or exploit, whose snapshots are in folders of this machine"
    require(config.cluster is None or not plays, "cluster", config.cluster, valid)
    valid = "None with exploit, whose games are against one policy that isn't the run's own"
    wins = config.snapshot_win_rate
    require(wins is None or exploit is None, "snapshot_win_rate", wins, valid)
    chance = config.deterministic and opponents is not None and config.league is not None
    valid = "False with a league that other runs may join at any time"
    require(not chance, "deterministic", True, valid)


def _check_policies(config: Any) -> None:
    """Several policies, against what is of one, or of one process."""
    if config.policies == SHARED:
        return
    mapping(config.policies)  # raises unless it is one
    for name, alone, why in (
        ("tasks", (), "which are of a game's agents"),
        ("opponents", None, "which play each other"),
        ("exploit", None, "which play each other"),
        ("init_from", None, "which begin with weights of their own"),
        ("num_learners", 1, "each of which has its learner in this one's process"),
        ("cluster", None, "whose actors are processes of this machine"),
    ):
        valid = f"{alone!r} with policies={shown(config.policies)}, {why}"
        require(getattr(config, name) == alone, name, getattr(config, name), valid)
    valid = "'auto' or 'actor' with several policies, of which each actor has copies"
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
    valid = f"None or False with {config.algo_name}, whose actors have no targets in common"
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
    """Whether one process can act for all actors."""
    shared, valid = config.inference == "shared", "'auto' or 'actor' with "
    for refused, what in (
        (config.transport == "serial", "transport='serial', where actors act in turn"),
        (config.algo.learns_in_actors, f"{config.algo_name}, whose actors have weights to learn"),
        (config.cluster is not None, "cluster, whose actors have no memory in common"),
        (config.deterministic, "deterministic, since timing decides which rows are batched"),
    ):
        require(not (shared and refused), "inference", "shared", valid + what)


def _check_cluster(config: Any) -> None:
    """Whether actors can live on a cluster."""
    asked = config.cluster
    for refused, what in (
        (
            config.transport == "serial" and config.num_learners == 1,
            "transport='serial' and one learner, who acts in this process",
        ),
        (
            config.algo.learns_in_actors,
            f"{config.algo_name}, whose actors share the model's memory",
        ),
    ):
        require(asked is None or not refused, "cluster", asked, f"None with {what}")
    least, most = config.min_actors, config.num_actors
    for refused, valid in (
        (asked is None, "None without cluster, where no node can be missing"),
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
    if config.num_learners == 1:  # several are told of the share of each
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
    """What depends on timing, and so on chance, against what shall not."""
    limit, share, algo = config.max_rollout_seconds, config.preempt_fraction, config.algo
    deterministic, transport = config.deterministic, config.transport
    own_pace, cuts = config.engine == "threads", limit is not None or share is not None
    valid = "False with engine='threads', where timing decides which rows are computed together"
    require(not (deterministic and own_pace), "deterministic", True, valid)
    valid = "False where rollouts are cut short by time"
    require(not (deterministic and cuts), "deterministic", True, valid)
    if deterministic and algo.max_lag > 0 and transport != "serial":
        raise ConfigError(
            "deterministic=True needs a synchronous algorithm (a2c, ppo) or transport='serial': "
            f"{config.algo_name} with transport={transport!r} depends on timing"
        )
    valid = "None with an asynchronous algorithm, where nobody waits for rollouts"
    require(share is None or algo.max_lag == 0, "preempt_fraction", share, valid)
    valid = "None without eval_interval and eval_episodes"
    watched = config.evaluates_while_training
    require(config.target_return is None or watched, "target_return", config.target_return, valid)


def _check_devices(config: Any) -> None:
    """A GPU for each of the learners of this machine."""
    device, gpus, here = config.device, torch.cuda.device_count(), config.learners_here
    valid = "'cpu' or 'cuda' with several learners (each takes a GPU of its own)"
    require(device in ("cpu", "cuda"), "device", device, valid)
    valid = f"'cpu' with {here} learners on a machine of {gpus} GPU(s): each needs its own"
    enough = device == "cpu" or gpus >= here or config.cluster not in (None, "ray")
    require(enough, "device", device, valid)


def _check_kwargs(name: str, kwargs: dict[str, Any]) -> None:
    try:
        json.dumps(kwargs)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(
            f"{name}={shown(kwargs)} can't be written to config.json: {error}"
        ) from error

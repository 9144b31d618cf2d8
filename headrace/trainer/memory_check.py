"""Checks memory, shared memory and open-file limits before a run allocates rollouts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import gymnasium
import torch

from headrace.config import Config
from headrace.errors import ConfigError, NoRoom, setting
from headrace.nn.encoder import least_bytes
from headrace.nn.multi_policy import AnyPolicy, MultiPolicy
from headrace.nn.network import Network
from headrace.nn.policy import policy_weights
from headrace.processes import allow_open_files
from headrace.processes.memory import (
    ENLARGE,
    SHARED_FOLDER,
    free_bytes,
    free_shared_bytes,
    shared_problem,
)
from headrace.transport.queue import NUM_HEADER_FIELDS
from headrace.transport.slab import ArraySpec, num_bytes, spec_of
from headrace.transport.weights import NUM_STORE_FIELDS

_MOST = 0.9  # of free memory for rollouts; the processes use the rest
_TRIES = 64
_SHRINKS = 1000  # by 2% each
_LARGE = 1 << 30  # smaller networks aren't checked
_WEIGHT_COPIES = 4  # weights, gradients, and two moments of Adam
_PROCESS = 15_000_000  # private bytes of an actor process, at least
_FILES, _CLIENT_FILES, _OTHER_FILES = 4, 2, 128  # open files per actor, per client, and other


def needed(config: Config, policy: AnyPolicy, env: Any = None) -> int:
    """Return the bytes of rollouts, batches and replay memory of all learners on this machine.

    Includes the actors' slots and the columns that the algorithm holds at a time
    (``Hyperparameters.columns_held``), but not networks, gradients and processes.
    """
    share = config.per_learner
    spec = share.actor_spec(env, policy)
    slot, width = num_bytes(spec.layout()), share.envs_per_actor
    assert isinstance(width, int)
    columns = share.rollouts_per_update * width
    if share.device == "cpu":  # otherwise batches are in device memory, except one in transit
        columns = _held(share, policy, columns)
    slots = (
        spec.num_slots if config.cluster is None else share.num_credits
    )  # unused slots take no memory
    return config.learners_here * (slot * slots + -(-slot * columns // width))


def _held(config: Config, policy: AnyPolicy, columns: int) -> int:
    """Return the columns in memory for a batch; several policies also copy their parts."""
    if not isinstance(policy, MultiPolicy):
        return config.algo.columns_held(columns)
    games, mapping = columns // len(policy.mapping.agents), policy.mapping
    parts = [config.algo.columns_held(games * len(mapping.of(name))) for name in mapping.policies]
    return columns + sum(parts)


def check_room(config: Config, policy: AnyPolicy, env: Any = None) -> None:
    """Raise NoRoom if rollouts need more memory than is free, with the setting that fixes it."""
    free = free_bytes()
    if (required := needed(config, policy, env)) <= _MOST * free:
        return
    for values, other in _smaller(config, _MOST * free / required):
        if needed(other, policy, env) <= _MOST * free:
            name, *others = values
            nearest = _written(values) if others else values[name]
            raise NoRoom(
                f"{name}={_shown(config, name)} needs {required / 1e9:.1f} GB of memory for "
                f"rollouts and batches, but only {free / 1e9:.1f} GB are free (nearest: {nearest})"
            )
    raise NoRoom(
        f"rollouts and batches need {required / 1e9:.1f} GB of memory, but only {free / 1e9:.1f} "
        "GB are free: reduce num_actors, envs_per_actor or fragment_length"
    )


def check_network(config: Config, observation_space: gymnasium.Space) -> None:
    """Raise NoRoom, before allocation, if weights, gradients and moments can't fit in memory."""

    def needed(network: Network) -> int:
        return _WEIGHT_COPIES * least_bytes(network, observation_space)

    free, network = free_bytes(), config.network
    if (required := needed(network)) <= max(_LARGE, _MOST * free):
        return
    names = [
        name for name in ("hidden", "core_size") if needed(_narrower(network, name)) < required
    ]
    near = network
    for _ in range(_SHRINKS):
        if needed(near) <= _MOST * free:
            break
        for name in names:
            near = _narrower(near, name)
    shown, nearest = (
        " with ".join(f"{name}={getattr(one, name)}" for name in names) for one in (network, near)
    )
    raise NoRoom(
        f"{shown} needs at least {required / 1e9:.1f} GB of memory for weights, gradients and the "
        f"optimiser, but only {free / 1e9:.1f} GB are free (nearest: {nearest})"
    )


def _narrower(network: Network, name: str) -> Network:
    """Return a network in which layers with this setting are 2% narrower."""
    if name == "hidden":
        return replace(network, hidden=tuple(max(1, int(0.98 * x)) for x in network.units))
    return replace(network, core_size=max(1, int(0.98 * network.core_size)))


def shared_needed(config: Config, policy: AnyPolicy, env: Any = None) -> int:
    """Return the bytes of shared memory for slots and weights of all learners on this machine."""
    share = config.per_learner
    spec = share.actor_spec(env, policy)
    of_slot, of_store = (
        ArraySpec((count,), torch.int64) for count in (NUM_HEADER_FIELDS, NUM_STORE_FIELDS)
    )
    slots = spec.num_slots * num_bytes((of_slot, spec.layout()))
    weights = 2 * num_bytes((of_store, spec_of(policy_weights(policy))))
    return config.learners_here * (slots + weights)


def check_shared_room(config: Config, policy: AnyPolicy, env: Any = None) -> None:
    """Raise NoRoom if shared memory is too small for the run, with the nearest batch that fits."""
    uses = config.transport == "shm" and config.cluster is None
    if uses and (problem := shared_problem()):
        raise NoRoom(
            f"transport='shm' needs shared memory, but {SHARED_FOLDER} {problem}: mount it "
            f"writable, or set {setting('transport', repr('serial'))}"
        )
    free = free_shared_bytes() if uses else None
    if free is None or (required := shared_needed(config, policy, env)) <= free:
        return
    serial = setting("transport", "'serial'")
    name, nearest = "batch_size", f"{serial}, which needs none"
    for values, other in _smaller(config, free / required):
        if shared_needed(other, policy, env) <= free:
            name = "max_lag" if "max_lag" in values else name
            nearest = _written(values) + (f" or {serial}" if config.num_learners == 1 else "")
            break
    raise NoRoom(
        f"{name}={_shown(config, name)} needs {required / 1e6:.1f} MB of shared memory, "
        f"but only {free / 1e6:.1f} MB are free in {SHARED_FOLDER}: enlarge it with {ENLARGE} "
        f"(nearest: {nearest})"
    )


def _written(values: dict[str, int]) -> str:
    return " with ".join(setting(name, str(value)) for name, value in values.items())


def _shown(config: Config, name: str) -> Any:
    """Return the value of a setting or hyperparameter, and automatic batch sizes as numbers."""
    resolved = {"batch_size": config.resolved_batch_size}
    return resolved.get(name, getattr(config.algo, name, getattr(config, name, None)))


def check_processes(config: Config) -> None:
    """Raise NoRoom if the actor processes on this machine can't fit in memory."""
    if config.transport != "shm" or config.cluster is not None:
        return
    count, free = config.learners_here * config.per_learner.num_actors, free_bytes()
    if count * _PROCESS > _MOST * free:
        near = max(1, int(_MOST * free / _PROCESS) // config.learners_here) * config.num_learners
        raise NoRoom(
            f"num_actors={config.num_actors} needs at least {count * _PROCESS / 1e9:.1f} GB of "
            f"memory for processes, but only {free / 1e9:.1f} GB are free (nearest: {near})"
        )


def check_files(config: Config) -> None:
    """Raise the open-file limit of this learner to the number that its actors need.

    Raises:
        NoRoom: the system doesn't allow it.
    """
    each = _FILES + _CLIENT_FILES * (config.inference == "shared")
    count = config.per_learner.num_actors if config.transport == "shm" else 0
    required = _OTHER_FILES + each * count
    if (allowed := allow_open_files(required)) < required:
        near = max(0, allowed - _OTHER_FILES) // each * config.num_learners
        instead = f"nearest: {near}" if near else f"set {setting('transport', repr('serial'))}"
        raise NoRoom(
            f"num_actors={config.num_actors} needs {required} open files per learner, but only "
            f"{allowed} are allowed: raise the limit (ulimit -n {required}), or {instead}"
        )


def _smaller(config: Config, share: float) -> Iterator[tuple[dict[str, int], Config]]:
    """Yield changed settings that need less memory, and their config, least intrusive first.

    Args:
        share: share of the memory that the changed settings may need.
    """
    algo: Any = config.algo
    unit, whole = config.rollout_steps, config.rollouts_per_update
    one = config.per_learner
    most = {"max_lag": one.num_credits // one.rollouts_per_update}  # a larger one needs no more
    free = {field.name for field in fields(algo) if field.init}  # a custom algorithm may fix some
    for name in ("replay_capacity", "buffer_size", "max_lag"):
        count = getattr(algo, name) if name in free else 1
        for n in _counts(min(count, most.get(name, count)), share):
            yield from _valid({name: n}, config, algo=replace(algo, **{name: n}))
    for n in _counts(whole, share):
        yield from _valid({"batch_size": n * unit}, config, batch_size=n * unit)
    length, batch = int(config.fragment_length), config.resolved_batch_size
    for short in sorted({round(length * 0.9**i) for i in range(1, 2 * _TRIES)} - {0}, reverse=True):
        values = {"fragment_length": short, "batch_size": batch // length * short}
        yield from _valid(values, config, **values)


def _counts(whole: int, share: float) -> Iterator[int]:
    """Yield decreasing counts, from the one that needs this share of the memory."""
    if whole > 1:
        most = min(whole - 1, math.ceil(whole * share))
        yield from sorted({max(1, round(most * 0.94**i)) for i in range(_TRIES)}, reverse=True)


def _valid(
    values: dict[str, int], config: Config, **changed: Any
) -> Iterator[tuple[dict[str, int], Config]]:
    try:
        other = replace(config, **changed)
        _ = other.per_learner
    except ConfigError:
        return
    yield values, other

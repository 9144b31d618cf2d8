"""Engines that make a vector environment; one that can't raises EngineUnavailable."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from headrace import extras
from headrace.envs import atari
from headrace.envs.adapters import EnvPool, next_step
from headrace.envs.context import made_in, numbered
from headrace.envs.contract import check_first_steps
from headrace.envs.infos import take_any_infos
from headrace.envs.mask_method import with_vector_masks
from headrace.envs.names import in_envpool
from headrace.envs.processes import Processes
from headrace.envs.single_env import (
    REASONS,
    EngineUnavailable,
    VectorEnvRequest,
    check_kwargs,
    creator,
    is_vector_class,
    takes_num_envs,
)
from headrace.envs.threads import Threads
from headrace.errors import ConfigError, EnvironmentFault, HeadraceError, setting
from headrace.games.infos import GAME
from headrace.games.vector import GameVector, agents_of
from headrace.processes.pickling import restore_scripts
from headrace.spaces.agreement import check_alike


def _native(request: VectorEnvRequest) -> VectorEnv:
    target, kwargs = request.target, request.kwargs
    _check_unwrapped(request)
    if isinstance(target, EnvSpec):
        if target.vector_entry_point is None:
            raise EngineUnavailable(f"it has no vector entry point{atari.hint(target)}")
        if atari.is_vector(target):
            atari.vector_settings(target, kwargs)  # reports settings that would make ale-py fail
        limit = {} if target.max_episode_steps is None else {"max_episode_steps": 0}
        check_kwargs(target.vector_entry_point, {**limit, **target.kwargs, **kwargs})
        made_by: Any = target.vector_entry_point
        made_by = load_env_creator(made_by) if isinstance(made_by, str) else made_by
        restore_scripts(made_by)
        num_envs = request.num_envs * max(1, len(agents_of(made_by)))
        make = functools.partial(gymnasium.make_vec, target, num_envs, "vector_entry_point")
        envs = made_in(request.context, make, kwargs)
    elif is_vector_class(target) or takes_num_envs(target):
        check_kwargs(target, kwargs)
        restore_scripts(target)
        num_envs = request.num_envs * max(1, len(agents_of(target)))
        envs = made_in(request.context, functools.partial(target, num_envs=num_envs), kwargs)
        _check_returned(envs, num_envs, request.name)
    else:
        raise EngineUnavailable("it isn't a VectorEnv class and has no vector entry point")
    if agents_of(envs) and envs.num_envs != request.num_envs * len(agents_of(envs)):
        envs.close()
        raise EngineUnavailable(
            f"its agents are {', '.join(agents_of(envs))}, of which {num_envs} columns hold no "
            f"{request.num_envs} games: the class (or the function registered as "
            "vector_entry_point) needs the attribute agents, and to take num_envs as columns"
        )
    try:
        envs = next_step(envs, request.name)
    except ConfigError as error:
        envs.close()
        raise EngineUnavailable(str(error)) from error
    if isinstance(target, EnvSpec) and atari.ends_with_lives(target, kwargs):
        envs = atari.LivesAsEpisodes(envs)
    envs = with_vector_masks(envs, request.name)
    check_first_steps(envs, request.name, request.checked_steps)
    return envs


def _check_returned(envs: Any, num_envs: int, name: str) -> None:
    """Raise unless a function returned a vector environment of the requested size.

    Raises:
        Unavailable: it returned something else.
        ConfigError: the size is different.
    """
    if isinstance(envs, VectorEnv) and envs.num_envs == num_envs:
        if isinstance(envs.unwrapped, SyncVectorEnv | AsyncVectorEnv):
            take_any_infos(envs.unwrapped)
        return
    if hasattr(envs, "close"):
        envs.close()
    if isinstance(envs, VectorEnv):
        raise ConfigError(
            f"{name} returned {envs.num_envs} environments for num_envs={num_envs}: pass num_envs "
            "to the vector environment that it makes"
        )
    raise EngineUnavailable(f"it returned {type(envs).__name__}, which isn't a VectorEnv")


def _envpool(request: VectorEnvRequest) -> VectorEnv:
    target = request.target
    _check_unwrapped(request)
    if not isinstance(target, EnvSpec):
        raise EngineUnavailable("envpool makes environments by id only")
    if not extras.is_installed("envpool"):
        raise EngineUnavailable(f"envpool isn't installed ({extras.install_line('envpool')})")
    if not in_envpool(target.id):
        raise EngineUnavailable("envpool has no environment of this id")
    if target.additional_wrappers:
        raise EngineUnavailable("envpool can't apply its wrappers")
    registered = gymnasium.registry.get(target.id, EnvSpec(target.id)).kwargs.items()
    settings = dict(item for item in target.kwargs.items() if item not in registered)
    if target.max_episode_steps is not None:
        settings["max_episode_steps"] = target.max_episode_steps
    try:
        envs = EnvPool(target.id, request.num_envs, request.seed, {**settings, **request.kwargs})
    except ConfigError as error:
        raise EngineUnavailable(str(error)) from error
    check_first_steps(envs, request.name, request.checked_steps)
    return envs


def _sync(request: VectorEnvRequest) -> VectorEnv:
    made = list[gymnasium.Env]()

    def create_next(create: Callable[[], gymnasium.Env]) -> gymnasium.Env:
        env = create()
        if made:
            check_alike(request.name, made[0], env, len(made))
        made.append(env)
        return env

    each = numbered(creator(request), request.num_envs)
    several = [functools.partial(create_next, create) for create in each]
    try:
        envs = SyncVectorEnv(several, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    except (*REASONS, HeadraceError):
        raise
    except Exception as error:  # the user's environment may raise anything
        if not 0 < len(made) < request.num_envs:
            raise
        for env in made:
            env.close()
        raise EnvironmentFault(
            f"only {len(made)} instances of {request.name} can be made in a process, not "
            f"{request.num_envs} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): give "
            f"{setting('envs_per_actor', str(len(made)))}, a larger num_actors and at most that "
            "many evaluation episodes, or use hr.env_context().index to give each environment its "
            "own port or file"
        ) from error
    if spec := envs.metadata.get(GAME):  # a reward for each agent
        envs._rewards = np.zeros((request.num_envs, len(spec.agents)))
    return take_any_infos(envs)


def _async(request: VectorEnvRequest) -> VectorEnv:
    create = creator(request)
    return take_any_infos(Processes(create, request.num_envs, request.name, seed=request.seed))


def _threads(request: VectorEnvRequest) -> VectorEnv:
    try:
        return take_any_infos(Threads(creator(request), request.num_envs, request.name))
    except EnvironmentFault as fault:
        if isinstance(fault.__cause__, (*REASONS, ConfigError)):
            raise fault.__cause__ from None
        raise


Engine: TypeAlias = Literal["auto", "native", "envpool", "sync", "async", "threads"]
ENGINES: dict[str, Callable[[VectorEnvRequest], VectorEnv]] = {
    "native": _native,
    "envpool": _envpool,
    "sync": _sync,
    "async": _async,
    "threads": _threads,
}


def in_columns(envs: VectorEnv) -> VectorEnv:
    """Return ``envs``, or for games a vector environment whose columns are the agents."""
    spec = envs.metadata.get(GAME)
    if spec is None:
        return envs
    return GameVector(envs, spec)


def _check_unwrapped(request: VectorEnvRequest) -> None:
    if request.wrappers:
        names = ", ".join(wrap.name for wrap in request.wrappers)
        raise EngineUnavailable(f"it steps all environments at once, and {names} wraps one")

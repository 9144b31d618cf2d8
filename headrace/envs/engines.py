"""Engines that make a vector environment; one that can't raises EngineUnavailable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv

from headrace import extras
from headrace.envs import atari
from headrace.envs.adapters import EnvPool, next_step
from headrace.envs.context import Creator, EnvContext, env_context, made_in, numbered
from headrace.envs.contract import CHECKED_STEPS, Contract, check_first_steps
from headrace.envs.exact_actions import with_exact_actions
from headrace.envs.infos import take_any_infos
from headrace.envs.mask_method import with_method_masks, with_vector_masks
from headrace.envs.names import Target, env_name, in_envpool
from headrace.envs.old_gym import GymEnv, is_gym
from headrace.envs.processes import Processes
from headrace.envs.threads import Threads
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError, EnvironmentFault, HeadraceError, setting
from headrace.games.game_env import GameEnv, is_game
from headrace.games.infos import GAME
from headrace.games.vector import GameVector, agents_of
from headrace.processes.pickling import restore_scripts
from headrace.spaces.agreement import check_alike

_MAKE_KWARGS = ("max_episode_steps", "disable_env_checker", "render_mode")  # gymnasium.make's own


class EngineUnavailable(Exception):
    """Reason why an engine can't make an environment, as a clause."""


REASONS = (EngineUnavailable, ImportError, gymnasium.error.Error)


@dataclass(frozen=True)
class VectorEnvRequest:
    """Request for a vector environment; see ``headrace.envs.make.make_vec``."""

    target: Target
    wrappers: tuple[Wrap, ...] = ()  # of each environment, innermost first
    num_envs: int = 1  # of several agents: games
    kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    checked_steps: int = CHECKED_STEPS
    context: EnvContext = field(default_factory=EnvContext)  # context of the first environment

    @property
    def name(self) -> str:
        """Name of the environment, for messages."""
        return env_name(self.target)


def _native(order: VectorEnvRequest) -> VectorEnv:
    target, kwargs = order.target, order.kwargs
    _check_unwrapped(order)
    if isinstance(target, EnvSpec):
        if target.vector_entry_point is None:
            raise EngineUnavailable(f"it has no vector entry point{atari.hint(target)}")
        if atari.is_vector(target):
            atari.vector_settings(target, kwargs)  # reports settings that would make ale-py fail
        limit = {} if target.max_episode_steps is None else {"max_episode_steps": 0}
        _check_kwargs(target.vector_entry_point, {**limit, **target.kwargs, **kwargs})
        made_by: Any = target.vector_entry_point
        made_by = load_env_creator(made_by) if isinstance(made_by, str) else made_by
        restore_scripts(made_by)
        num_envs = order.num_envs * max(1, len(agents_of(made_by)))
        make = functools.partial(gymnasium.make_vec, target, num_envs, "vector_entry_point")
        envs = made_in(order.context, make, kwargs)
    elif is_vector_class(target) or takes_num_envs(target):
        _check_kwargs(target, kwargs)
        restore_scripts(target)
        num_envs = order.num_envs * max(1, len(agents_of(target)))
        envs = made_in(order.context, functools.partial(target, num_envs=num_envs), kwargs)
        _check_returned(envs, num_envs, order.name)
    else:
        raise EngineUnavailable("it isn't a VectorEnv class and has no vector entry point")
    if agents_of(envs) and envs.num_envs != order.num_envs * len(agents_of(envs)):
        envs.close()
        raise EngineUnavailable(
            f"its agents are {', '.join(agents_of(envs))}, of which {num_envs} columns hold no "
            f"{order.num_envs} games: the class (or the function registered as "
            "vector_entry_point) needs the attribute agents, and to take num_envs as columns"
        )
    try:
        envs = next_step(envs, order.name)
    except ConfigError as error:
        envs.close()
        raise EngineUnavailable(str(error)) from error
    if atari.is_vector(target) and kwargs.get("life_loss_info"):
        envs = atari.LivesAsEpisodes(envs)
    envs = with_vector_masks(envs, order.name)
    check_first_steps(envs, order.name, order.checked_steps)
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


def _envpool(order: VectorEnvRequest) -> VectorEnv:
    target = order.target
    _check_unwrapped(order)
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
        envs = EnvPool(target.id, order.num_envs, order.seed, {**settings, **order.kwargs})
    except ConfigError as error:
        raise EngineUnavailable(str(error)) from error
    check_first_steps(envs, order.name, order.checked_steps)
    return envs


def _sync(order: VectorEnvRequest) -> VectorEnv:
    made = list[gymnasium.Env]()

    def create_next(create: Callable[[], gymnasium.Env]) -> gymnasium.Env:
        env = create()
        if made:
            check_alike(order.name, made[0], env, len(made))
        made.append(env)
        return env

    each = numbered(creator(order), order.num_envs)
    several = [functools.partial(create_next, create) for create in each]
    try:
        envs = SyncVectorEnv(several, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    except (*REASONS, HeadraceError):
        raise
    except Exception as error:  # the user's environment may raise anything
        if not 0 < len(made) < order.num_envs:
            raise
        for env in made:
            env.close()
        raise EnvironmentFault(
            f"only {len(made)} instances of {order.name} can be made in a process, not "
            f"{order.num_envs} "
            f"({type(error).__name__}: {' '.join(str(error).split())}): give "
            f"{setting('envs_per_actor', str(len(made)))}, a larger num_actors and at most that "
            "many evaluation episodes, or use hr.env_context().index to give each environment its "
            "own port or file"
        ) from error
    if spec := envs.metadata.get(GAME):  # a reward for each agent
        envs._rewards = np.zeros((order.num_envs, len(spec.agents)))
    return take_any_infos(envs)


def _async(order: VectorEnvRequest) -> VectorEnv:
    create = creator(order)
    return take_any_infos(Processes(create, order.num_envs, order.name, seed=order.seed))


def _threads(order: VectorEnvRequest) -> VectorEnv:
    try:
        return take_any_infos(Threads(creator(order), order.num_envs, order.name))
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


def creator(order: VectorEnvRequest) -> Callable[[], gymnasium.Env]:
    """Return a factory of single environments whose first steps are checked.

    Raises:
        Unavailable: there is no single environment, or it doesn't take the kwargs.
    """
    target, kwargs = order.target, order.kwargs
    if isinstance(target, EnvSpec):
        if target.entry_point is None:
            raise EngineUnavailable("no single environment is registered under its id")
        if agents := _agents_in(target.vector_entry_point):
            raise EngineUnavailable(
                f"it is a game of {', '.join(agents)}, and the single environment under its id "
                "controls only one player"
            )
        own = {k: v for k, v in kwargs.items() if k not in _MAKE_KWARGS}
        # The checks of gymnasium.make cost time at every step, and the loop keeps the order.
        spec = dataclasses.replace(target, order_enforce=False)
        kwargs = {"disable_env_checker": True, **kwargs}
        make: Callable[..., Any] = functools.partial(gymnasium.make, spec)
    elif is_vector_class(target):
        raise EngineUnavailable("it is a VectorEnv class")
    else:
        own = kwargs
        make = functools.partial(target, num_envs=1) if takes_num_envs(target) else target
    _check_kwargs(target.entry_point if isinstance(target, EnvSpec) else target, own)
    rest = order.wrappers, order.name, order.checked_steps
    return Creator(functools.partial(_create_one, make, kwargs, *rest), order.context)


def _agents_in(entry: Any) -> tuple[str, ...]:
    """Return the agents of a vector entry point; () without one, or if it can't be imported."""
    try:
        return agents_of(load_env_creator(entry) if isinstance(entry, str) else entry)
    except Exception:  # a user's module may raise anything; reported if it is used
        return ()


def _create_one(
    make: Callable[..., Any],
    kwargs: dict[str, Any],
    wrappers: tuple[Wrap, ...],
    name: str,
    checked_steps: int,
) -> gymnasium.Env:
    create = functools.partial(made_in, env_context(), make, kwargs)
    spec = make.args[0] if isinstance(make, functools.partial) and make.args else None
    for code in (getattr(spec, "entry_point", make), *(wrap.function for wrap in wrappers)):
        restore_scripts(code)
    env = create()
    if is_game(env):
        return _create_game(env, wrappers, name, checked_steps)
    if is_gym(env):
        with contextlib.suppress(TypeError, ValueError):  # some builtins have no signature
            vars(create)["__signature__"] = inspect.signature(make)  # it may take a seed
        env = GymEnv(env, create)
    if isinstance(env, VectorEnv):
        env.close()
        raise EngineUnavailable(
            f"it returned {type(env).__name__}, a vector environment: give the function the "
            "parameter num_envs and return that many environments"
        )
    if not isinstance(env, gymnasium.Env):
        raise EngineUnavailable(f"it returned {type(env).__name__}, which isn't a gymnasium.Env")
    for wrap in wrappers:
        if wrap.together is not None:  # unifies tasks, whose masks are shorter
            env = with_method_masks(env, name)
        env = wrap(env)
    for kind in ("observation_space", "action_space"):
        space = getattr(env, kind, None)
        if not isinstance(space, gymnasium.Space):
            type_name = f"{type(space).__module__}.{type(space).__name__}"
            raise EngineUnavailable(f"its {kind} is a {type_name}, which isn't a gymnasium.Space")
    env = with_method_masks(env, name)
    check_first_steps(env, name, checked_steps)
    return with_exact_actions(env)


def _create_game(
    env: Any, wrappers: tuple[Wrap, ...], name: str, checked_steps: int
) -> gymnasium.Env:
    if wrappers:
        names = ", ".join(wrap.name for wrap in wrappers)
        raise EngineUnavailable(
            f"{names} wraps single-agent environments, but this one has several agents (wrap it in "
            "a function that returns it)"
        )
    return GameEnv(env, name, checked_steps, Contract)


def in_columns(envs: VectorEnv) -> VectorEnv:
    """Return ``envs``, or for games a vector environment whose columns are the agents."""
    spec = envs.metadata.get(GAME)
    if spec is None:
        return envs
    return GameVector(envs, spec)


def is_vector_class(target: Any) -> bool:
    """Return whether ``env`` is a class that makes many environments at once."""
    return isinstance(target, type) and issubclass(target, VectorEnv)


def takes_num_envs(target: Any) -> bool:
    """Return whether a function has a parameter ``num_envs``, so it can return a vector
    environment.
    """
    if isinstance(target, EnvSpec) or (
        isinstance(target, type) and issubclass(target, gymnasium.Env)
    ):
        return False
    try:
        parameter = inspect.signature(target).parameters.get("num_envs")
    except (TypeError, ValueError):  # some builtins have no signature
        return False
    return parameter is not None and parameter.kind is not parameter.VAR_KEYWORD


def _check_unwrapped(order: VectorEnvRequest) -> None:
    if order.wrappers:
        names = ", ".join(wrap.name for wrap in order.wrappers)
        raise EngineUnavailable(f"it steps all environments at once, and {names} wraps one")


def _check_kwargs(entry: Any, kwargs: dict[str, Any]) -> None:
    made_by = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        parameters = inspect.signature(made_by).parameters
    except (TypeError, ValueError):  # some builtins have no signature
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            accepted = ", ".join(p for p in parameters if p != "num_envs")
            words = f"takes {accepted}, but no" if accepted else "takes no arguments, so no"
            raise EngineUnavailable(f"{env_name(made_by)} {words} {name!r}")

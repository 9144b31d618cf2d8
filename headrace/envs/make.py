"""From a Gymnasium id, an EnvSpec, a class or a callable to a vector environment.

Five engines make it: ``native`` (the environment's own vectorised version), ``envpool`` (C++),
``sync`` (Gymnasium's loop over single environments), ``async`` (a process per environment, for
slow ones) and ``threads`` (a thread per environment, for those that wait). Whichever does, the
result autoresets in NEXT_STEP mode.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import inspect
import multiprocessing
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from headrace.envs.adapters import EnvPool, next_step
from headrace.envs.names import Target, env_name, in_envpool, resolve
from headrace.envs.processes import Processes
from headrace.envs.threads import Threads
from headrace.errors import ConfigError, EnvironmentFault, require, require_choice

_MAKE_KWARGS = ("max_episode_steps", "disable_env_checker", "render_mode")  # gymnasium.make's own
_MAX_SEED = 2**31 - 1  # envpool's seeds are int32
_MAX_ACTORS = 1024


class _Unavailable(Exception):
    """Why an engine can't make an environment, as a clause."""


_REASONS = (_Unavailable, ImportError, gymnasium.error.Error)


def make_vec(
    env: Any,
    num_envs: int,
    engine: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
) -> VectorEnv:
    """``num_envs`` copies of an environment, stepped together in NEXT_STEP autoreset.

    Observations may live in memory that the next step overwrites: copy what you keep.

    Args:
        env: a Gymnasium id (``"CartPole-v1"``, ``"module:Id-v0"``), an EnvSpec, an Env class, a
            callable that returns an Env, or a VectorEnv class, which is called with ``num_envs``.
        engine: ``native``, ``envpool``, ``sync``, ``async``, ``threads``, or ``auto`` for the
            first of the first three that can make it; envpool only replaces environments that
            come with Gymnasium. async starts a process per environment, and makes one more here
            to learn its spaces. threads starts a thread per environment, and makes none here.
            Engines may differ in their random streams and, rarely, in their spaces.
        env_kwargs: given to the environment.
        seed: of an envpool pool until ``reset(seed=…)``; other engines are seeded by that alone.

    Raises:
        ConfigError: env or engine is unknown, or the engine can't make this environment.
        EnvironmentFault: an environment failed in its process (async) or thread (threads).
    """
    require_choice("engine", engine, ENGINES)
    require(num_envs >= 1, "num_envs", num_envs, "at least 1")
    target, kwargs = resolve(env), dict(env_kwargs or {})
    reasons: dict[str, str] = {}
    for name in _candidates(target) if engine == "auto" else [engine]:
        try:
            return _ENGINES[name](target, num_envs, kwargs, seed)
        except _REASONS as reason:
            reasons[name] = str(reason).partition("\n")[0].rstrip(".")
    if engine == "auto":
        clauses = [f"engine {name}: {reason}" for name, reason in reasons.items()]
        raise ConfigError(f"{env_name(target)} can't be made ({'; '.join(clauses)})")
    # What async and threads can make, sync can, and nothing is started for a hint.
    hints = [name for name in _ENGINES if name not in (engine, "async", "threads")]
    others = [repr(name) for name in hints if _works(name, target, kwargs)]
    raise ConfigError(
        f"engine={engine!r} can't make {env_name(target)} because {reasons[engine]}; "
        + (f"engine={' or '.join(others)} can" if others else "no other engine can either")
    )


def env_seed(seed: int, actor: int, num_envs: int, generation: int = 0) -> int:
    """Base seed of an actor's environments: environment ``i`` uses ``env_seed(…) + i``, an int32.

    No two environments of a run share a seed, up to 1024 actors and ``2**21 / num_envs``
    generations. Runs with other seeds use other ranges, except by a chance of about one in
    ``2**31 / num_envs`` for each pair of actors.

    Args:
        seed: of the run. actor: its index. generation: how often it was restarted.
    """
    num_blocks = _MAX_SEED // num_envs
    start = int(np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0])
    return (start + generation * _MAX_ACTORS + actor) % num_blocks * num_envs


# -- engines: each returns the vector environment or raises _Unavailable ----------------------


def _native(target: Target, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv:
    if isinstance(target, EnvSpec):
        if target.vector_entry_point is None:
            raise _Unavailable("it has no vector entry point")
        limit = {} if target.max_episode_steps is None else {"max_episode_steps": 0}
        _check_kwargs(target.vector_entry_point, {**limit, **target.kwargs, **kwargs})
        envs = gymnasium.make_vec(target, num_envs, "vector_entry_point", **kwargs)
    elif _is_vector_class(target):
        _check_kwargs(target, kwargs)
        envs = target(num_envs=num_envs, **kwargs)
    else:
        raise _Unavailable("it isn't a VectorEnv class and has no vector entry point")
    try:
        return next_step(envs, env_name(target))
    except ConfigError as error:
        envs.close()
        raise _Unavailable(str(error)) from error


def _envpool(target: Target, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv:
    if not isinstance(target, EnvSpec):
        raise _Unavailable("envpool makes environments by id only")
    if importlib.util.find_spec("envpool") is None:
        raise _Unavailable("envpool isn't installed (pip install 'headrace[envpool]')")
    if not in_envpool(target.id):
        raise _Unavailable("envpool has no environment of this id")
    if target.additional_wrappers:
        raise _Unavailable("envpool can't apply its wrappers")
    known = gymnasium.registry.get(target.id, EnvSpec(target.id)).kwargs.items()
    settings = dict(item for item in target.kwargs.items() if item not in known)
    if target.max_episode_steps is not None:
        settings["max_episode_steps"] = target.max_episode_steps
    try:
        return EnvPool(target.id, num_envs, seed, {**settings, **kwargs})
    except ConfigError as error:
        raise _Unavailable(str(error)) from error


def _sync(target: Target, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv:
    create = [_creator(target, kwargs)] * num_envs
    return SyncVectorEnv(create, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)


def _async(target: Target, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv:
    create = _creator(target, kwargs)
    if multiprocessing.current_process().daemon:
        raise _Unavailable("it starts processes, which a daemonic one, such as an actor, may not")
    return Processes(create, num_envs, env_name(target))


def _threads(target: Target, num_envs: int, kwargs: dict[str, Any], seed: int) -> VectorEnv:
    try:
        return Threads(_creator(target, kwargs), num_envs, env_name(target))
    except EnvironmentFault as fault:
        if isinstance(fault.__cause__, _REASONS):
            raise fault.__cause__ from None
        raise


def _creator(target: Target, kwargs: dict[str, Any]) -> Callable[[], gymnasium.Env]:
    """What makes one environment."""
    if isinstance(target, EnvSpec):
        if target.entry_point is None:
            raise _Unavailable("no single environment is registered under its id")
        own = {k: v for k, v in kwargs.items() if k not in _MAKE_KWARGS}
        # The checks of gymnasium.make cost time at every step, and the loop keeps the order.
        spec = dataclasses.replace(target, order_enforce=False)
        create = functools.partial(gymnasium.make, spec, **{"disable_env_checker": True, **kwargs})
    elif _is_vector_class(target):
        raise _Unavailable("it is a VectorEnv class")
    else:
        own, create = kwargs, functools.partial(target, **kwargs)
    _check_kwargs(target.entry_point if isinstance(target, EnvSpec) else target, own)

    def create_one() -> gymnasium.Env:
        env = create()
        if not isinstance(env, gymnasium.Env):
            raise _Unavailable(f"it returned {type(env).__name__}, which isn't a gymnasium.Env")
        return env

    return create_one


_ENGINES: dict[str, Callable[[Target, int, dict[str, Any], int], VectorEnv]] = {
    "native": _native,
    "envpool": _envpool,
    "sync": _sync,
    "async": _async,
    "threads": _threads,
}
ENGINES = ("auto", *_ENGINES)


def _candidates(target: Target) -> list[str]:
    """The engines that ``auto`` tries, best first."""
    if not isinstance(target, EnvSpec):
        return ["native" if _is_vector_class(target) else "sync"]
    entry = target.entry_point
    # A user's own environment never falls to another of the same id, nor imports envpool.
    gymnasiums = entry is None or (isinstance(entry, str) and entry.startswith("gymnasium.envs."))
    names = ["native"] if target.vector_entry_point is not None else []
    if gymnasiums and importlib.util.find_spec("envpool") is not None:
        names.append("envpool")
    return [*names, "sync"]


def _works(engine: str, target: Target, kwargs: dict[str, Any]) -> bool:
    try:
        _ENGINES[engine](target, 1, kwargs, 0).close()
    except Exception:  # the user's environment may raise anything
        return False
    return True


def _is_vector_class(target: Any) -> bool:
    return isinstance(target, type) and issubclass(target, VectorEnv)


def _check_kwargs(entry: Any, kwargs: dict[str, Any]) -> None:
    creator = load_env_creator(entry) if isinstance(entry, str) else entry
    try:
        parameters = inspect.signature(creator).parameters
    except (TypeError, ValueError):  # some builtins have none
        return
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for name in kwargs:
        if name not in parameters:
            accepted = ", ".join(p for p in parameters if p != "num_envs") or "nothing"
            raise _Unavailable(f"{env_name(creator)} takes {accepted}, but no {name!r}")

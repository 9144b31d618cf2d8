"""Makes vector environments from a Gymnasium id, an EnvSpec, a class or a callable.

Five engines make it: ``native`` (the environment's own vectorised version), ``envpool`` (C++),
``sync`` (Gymnasium's loop over single environments), ``async`` (a process per environment, for
slow ones) and ``threads`` (a thread per environment, for those that wait). The result always
autoresets in NEXT_STEP mode.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
from collections.abc import Iterable
from typing import Annotated, Any

import numpy as np
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import VectorEnv

from headrace.envs import atari, engines
from headrace.envs.context import EnvContext
from headrace.envs.contract import CHECKED_STEPS
from headrace.envs.names import Prepared, resolve
from headrace.envs.packages import package_of
from headrace.envs.single_env import (
    REASONS,
    EngineUnavailable,
    VectorEnvRequest,
    creator,
    is_vector_class,
    takes_num_envs,
)
from headrace.envs.wrappers import Wrap
from headrace.errors import ConfigError, require_choice
from headrace.spaces.agreement import difference
from headrace.validation import ranges
from headrace.validation.fields import checked

_MAX_SEED = 2**31 - 1  # envpool's seeds are int32
_MAX_ACTORS = 1024
ENGINES = ("auto", *engines.ENGINES)


@checked
def make_vec(
    env: Any,
    num_envs: Annotated[int, ranges.SIZE],
    engine: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    seed: Annotated[int, ranges.SEED] = 0,
    wrappers: Iterable[Any] = (),
    context: EnvContext | None = None,
) -> VectorEnv:
    """Make ``num_envs`` copies of an environment, stepped together in NEXT_STEP autoreset.

    A game of several agents is one environment, but each of its agents is a row of the result,
    which has ``num_envs`` times the number of agents as rows
    (``headrace.games.vector.GameVector``).

    Observations may live in memory that the next step overwrites: copy what you keep. The
    results of the first steps are checked against the spaces.

    Args:
        env: a Gymnasium id (``"CartPole-v1"``, ``"module:Id-v0"``), an EnvSpec, an Env class, a
            callable that returns an Env or one of PettingZoo's, or a VectorEnv class or a function
            with a parameter ``num_envs`` that returns a VectorEnv in any autoreset mode. For games,
            it has an attribute ``agents``, the agents' names, and is called with ``num_envs``
            times their number.
        engine: ``native``, ``envpool``, ``sync``, ``async``, ``threads``, or ``auto`` for the
            first of the first three that can make it; envpool only replaces environments that
            come with Gymnasium, and either only where its spaces are those of the single
            environment. async starts a process per environment, and makes one more here to learn
            its spaces. threads starts a thread per environment, and makes none here. Engines may
            differ in their random streams.
        env_kwargs: keyword arguments of the environment.
        seed: seeds an envpool pool until ``reset(seed=…)``, and the global generators in each
            process of async. Other environments are seeded by ``reset`` alone.
        wrappers: applied to each environment in this order, see ``headrace.envs.wrappers.as_wrap``.
        context: context of the first environment, see ``headrace.env_context``; None outside a run.

    Raises:
        ConfigError: env, engine or a wrapper is unknown, or the engine can't make this
            environment.
        EnvironmentFault: an environment failed in its process (async) or thread (threads); from
            ``reset`` and ``step``: a returned value doesn't match its spaces.
    """
    return opened(env, num_envs, engine, env_kwargs, seed, wrappers, context=context)[1]


def opened(
    env: Any,
    num_envs: int,
    engine: str = "auto",
    env_kwargs: dict[str, Any] | None = None,
    seed: int = 0,
    wrappers: Iterable[Any] = (),
    checked_steps: int = CHECKED_STEPS,
    context: EnvContext | None = None,
) -> tuple[str, VectorEnv]:
    """Return the name of the chosen engine, and the result of :func:`make_vec`.

    Args:
        checked_steps: number of first steps of each environment that are checked against its
            spaces.
    """
    require_choice("engine", engine, ENGINES)
    target, wrapped = Prepared.split(resolve(env, wrappers))
    context = dataclasses.replace(context or EnvContext(), num_envs=num_envs)
    how = dict(env_kwargs or {}), seed, checked_steps, context
    order = VectorEnvRequest(target, wrapped, num_envs, *how)
    atari.frames_per_step(target, order.kwargs, wrapped)  # raises on a double frame skip
    reasons: dict[str, str] = {}
    for name in _candidates(_split(order)[0]) if engine == "auto" else [engine]:
        try:
            envs = _made(name, order)
            if engine == "auto":
                _check_agrees(name, envs, order)
            return name, envs
        except REASONS as reason:
            reasons[name] = str(reason).partition("\n")[0].rstrip(".")
    if engine == "auto":
        clauses = [f"engine {name}: {reason}" for name, reason in reasons.items()]
        raise ConfigError(f"{order.name} can't be made ({'; '.join(clauses)})")
    # Try sync, which can make everything that async and threads can, and starts no process.
    hints = [name for name in engines.ENGINES if name not in (engine, "async", "threads")]
    others = [repr(name) for name in hints if _works(name, order)]
    raise ConfigError(
        f"engine={engine!r} can't make {order.name} because {reasons[engine]}; "
        + (f"engine={' or '.join(others)} can" if others else "no other engine can either")
    )


def _made(engine: str, order: VectorEnvRequest) -> VectorEnv:
    """Make the environment with an engine, applying the last wrapper to the vector if possible."""
    bare, last = _split(order)
    if last is None or last.together is None or engine not in ("native", "envpool"):
        return engines.in_columns(engines.ENGINES[engine](order))
    return last.together(engines.in_columns(engines.ENGINES[engine](bare)), **last.kwargs)


def _split(order: VectorEnvRequest) -> tuple[VectorEnvRequest, Wrap | None]:
    """Split off an order's last wrapper if it supports vector environments."""
    if not order.wrappers or order.wrappers[-1].together is None:
        return order, None
    *others, last = order.wrappers
    return dataclasses.replace(order, wrappers=tuple(others)), last


def env_seed(seed: int, actor: int, num_envs: int, generation: int = 0) -> int:
    """Return the base seed of an actor's environments: environment ``i`` uses ``env_seed(…) + i``.

    No two environments of a run share a seed, up to 1024 actors and ``2**21 / num_envs``
    generations. Runs with other seeds use other ranges, except by a chance of about one in
    ``2**31 / num_envs`` for each pair of actors.

    Args:
        seed: seed of the run.
        actor: index of the actor.
        generation: number of restarts of the actor.
    """
    num_blocks = _MAX_SEED // num_envs
    start = int(np.random.SeedSequence(seed % 2**64).generate_state(1, np.uint64)[0])
    return (start + generation * _MAX_ACTORS + actor) % num_blocks * num_envs


def _candidates(order: VectorEnvRequest) -> list[str]:
    """Return the engines that ``auto`` tries, best first."""
    target = order.target
    if not isinstance(target, EnvSpec):
        several = takes_num_envs(target)  # it may still return a single environment
        return ["native"] if is_vector_class(target) else ["native"] * several + ["sync"]
    if order.wrappers:
        return ["sync"]
    entry = target.entry_point
    package = package_of(target.id)
    if entry is None and target.vector_entry_point is None and package is not None:
        raise ConfigError(
            f"env={target.id!r} needs a package that isn't installed: pip install {package.pip}; "
            "engine='envpool' makes one with this id whose observations may differ"
        )
    # Never replace a user's environment by another of the same id, nor import envpool for it.
    gymnasiums = entry is None or (isinstance(entry, str) and entry.startswith("gymnasium.envs."))
    names = ["native"] if target.vector_entry_point is not None else []
    if gymnasiums and importlib.util.find_spec("envpool") is not None:
        names.append("envpool")
    return [*names, "sync"]


def _check_agrees(name: str, envs: VectorEnv, order: VectorEnvRequest) -> None:
    """Raise EngineUnavailable and close ``envs`` if they differ from the single environment.

    Skipped if no single environment can be made.
    """
    target = order.target
    if name == "sync" or not isinstance(target, EnvSpec) or target.entry_point is None:
        return
    try:
        beyond = dataclasses.replace(order, context=order.context.at(order.num_envs))
        with contextlib.closing(creator(beyond)()) as single:
            spaces = single.observation_space, single.action_space
    except Exception:  # the single environment may lack a dependency
        return
    mismatch = difference(*spaces, envs.single_observation_space, envs.single_action_space)
    if mismatch:
        envs.close()
        raise EngineUnavailable(mismatch)


def _works(engine: str, order: VectorEnvRequest) -> bool:
    try:
        _made(engine, dataclasses.replace(order, num_envs=1)).close()
    except Exception:  # the user's environment may raise anything
        return False
    return True

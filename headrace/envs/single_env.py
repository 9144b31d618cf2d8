"""Makes the single environments of a vector environment, with checks and wrappers."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from headrace.envs.context import Creator, EnvContext, env_context, made_in
from headrace.envs.contract import CHECKED_STEPS, Contract, check_first_steps
from headrace.envs.exact_actions import with_exact_actions
from headrace.envs.mask_method import with_method_masks
from headrace.envs.names import Target, env_name
from headrace.envs.old_gym import GymEnv, is_gym
from headrace.envs.wrappers import Wrap
from headrace.games.game_env import GameEnv, is_game
from headrace.games.vector import agents_of
from headrace.processes.pickling import restore_scripts

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


def creator(request: VectorEnvRequest) -> Callable[[], gymnasium.Env]:
    """Return a factory of single environments whose first steps are checked.

    Raises:
        EngineUnavailable: the id is registered for vector environments alone, or its
            environment doesn't accept the kwargs.
    """
    target, kwargs = request.target, request.kwargs
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
    check_kwargs(target.entry_point if isinstance(target, EnvSpec) else target, own)
    rest = request.wrappers, request.name, request.checked_steps
    return Creator(functools.partial(_create_one, make, kwargs, *rest), request.context)


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


def check_kwargs(entry: Any, kwargs: dict[str, Any]) -> None:
    """Raise EngineUnavailable if an entry point takes no argument of one of these names."""
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

"""Resolves a user's ``env``: a Gymnasium id, an EnvSpec, a class or a callable."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from headrace.envs import atari
from headrace.envs.atari_scores import SCORES
from headrace.envs.packages import bring, is_installed, package_of
from headrace.envs.suggestions import names_in, nearest_module, same_name
from headrace.envs.wrappers import Wrap, as_wrap
from headrace.errors import ConfigError, nearest, require, shown
from headrace.extras import install_line
from headrace.games.pettingzoo import MAKERS, PettingZooGame, as_typed, find_game
from headrace.spaces.unified_spaces import Spaces

Target: TypeAlias = EnvSpec | Callable[..., Any]


@dataclass(frozen=True)
class Prepared:
    """An environment with its wrappers and the registrations of this process.

    Unpickling it in another process repeats the registrations first.
    """

    env: Target
    wrappers: tuple[Wrap, ...] = ()
    carries: bool = False  # pickles this process's registrations

    def __reduce__(self) -> Any:
        specs = _registered() if self.carries else {}
        return _arrive, (self.env, self.wrappers, self.carries, specs)

    @classmethod
    def split(cls, env: Target | Prepared) -> tuple[Target, tuple[Wrap, ...]]:
        """Return the environment and its wrappers."""
        return (env.env, env.wrappers) if isinstance(env, cls) else (env, ())  # type: ignore


@dataclass(frozen=True)
class Tasks:
    """Several environments for one policy, each with its own actors."""

    envs: tuple[Any, ...]  # as for ``resolve``
    shown: bool = False  # whether observations contain the task's number
    joined: bool = False  # whether spaces are unified (``headrace.envs.unified_tasks``)
    own: tuple[Spaces, ...] = ()  # original spaces of each task

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the tasks."""
        return tuple(map(env_name, self.envs))


def envs_of(env: Any) -> tuple[Any, ...]:
    """Return the environments of several tasks, or the only one."""
    return env.envs if isinstance(env, Tasks) else (env,)


def env_of(env: Any, actor: int) -> Any:
    """Return the environment of an actor by its number among all learners; tasks alternate."""
    envs = envs_of(env)
    return envs[actor % len(envs)]


def _registered() -> dict[str, bytes]:
    """Return registrations beyond Gymnasium's own, pickled by id."""
    import cloudpickle

    specs = {}
    for name, spec in gymnasium.registry.items():
        if not is_foreign(spec):
            continue
        with contextlib.suppress(Exception):  # reported where the id is looked up
            specs[name] = cloudpickle.dumps(by_value(spec))
    return specs


def _arrive(
    env: Target, wrappers: tuple[Wrap, ...], carries: bool, specs: dict[str, bytes]
) -> Prepared:
    import pickle

    if specs:  # modules imported later register the same ids again
        warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    for name, pickled in specs.items():
        if name not in gymnasium.registry:
            gymnasium.registry[name] = pickle.loads(pickled)
    return Prepared(env, wrappers, carries)


class Registry:
    """Empty object that repeats this process's registrations where it is unpickled."""

    def __reduce__(self) -> Any:
        return _arrive_only, (_registered(),)


def _arrive_only(specs: dict[str, bytes]) -> Registry:
    _arrive(EnvSpec, (), True, specs)
    return Registry()


def resolve(env: Any, wrappers: Iterable[Any] = ()) -> Any:
    """Resolve ``env`` to a form that can be pickled to a process without its registration.

    Returns:
        the EnvSpec of an id, or the class or callable itself; a :class:`Prepared` of it if there
        are wrappers, or if a script's function may use ids registered only here. For tasks, each
        task is resolved.

    Raises:
        ConfigError: the id or a wrapper is unknown, ``env`` has another type, or a task is listed
            twice.
    """
    if isinstance(env, Tasks):
        wrappers = tuple(wrappers)
        each = tuple(resolve(one, wrappers) for one in env.envs)
        check_once([env_name(one) for one in each])  # compared by resolved id
        return dataclasses.replace(env, envs=each)
    env, before = Prepared.split(env)
    refuse_instance(env)
    if isinstance(env, str):
        env = _find(env)
    if isinstance(env, EnvSpec):
        env = by_value(env)
    elif not callable(env):
        raise ConfigError(
            f"env={shown(env)} is neither a Gymnasium id, an EnvSpec, an environment class "
            "nor a callable that returns an environment"
        )
    wraps = (*before, *map(as_wrap, wrappers))
    # Packages register environments on import; a script's code may make any of them.
    code = env.entry_point if isinstance(env, EnvSpec) else env
    makes = callable(code) and not (isinstance(code, type) and code.__module__ != "__main__")
    carries = makes and any(map(is_foreign, gymnasium.registry.values()))
    return Prepared(env, wraps, carries) if wraps or carries else env


def refuse_instance(env: Any) -> None:
    """Raise ConfigError if ``env`` is an environment instance or a sequence of environments.

    Every actor makes its own environments, so it needs a class or function that makes them.
    """
    if isinstance(env, list | tuple):
        raise ConfigError(
            f"env={shown(env)} is a {type(env).__name__}: give one id, class or function, which "
            "each actor calls for every environment, or tasks=[…] for several tasks"
        )
    several = isinstance(env, gymnasium.vector.VectorEnv)
    is_game = hasattr(env, "possible_agents") and not isinstance(env, type) and hasattr(env, "step")
    if not (several or isinstance(env, gymnasium.Env) or is_game):
        return
    class_name = type(env.unwrapped).__name__ if not is_game else type(env).__name__
    spec = getattr(env, "spec", None)
    named = f"the id {spec.id!r}" if isinstance(spec, EnvSpec) else f"the class {class_name}"
    kind = "function with a parameter num_envs" if several else "function"
    raise ConfigError(
        f"env={shown(env)} is an instance of {class_name}, which can't be shared between actors: "
        "give "
        f"{named}, or a {kind} that makes it"
    )


def is_foreign(spec: EnvSpec) -> bool:
    """Return whether an id is registered only in this process."""
    entry = spec.entry_point or spec.vector_entry_point
    return not (isinstance(entry, str) and entry.startswith(("gymnasium.envs.", "headrace")))


def by_value(spec: EnvSpec, main: Any = None) -> EnvSpec:
    """Replace names in ``__main__`` by objects, because ``__main__`` differs in other processes.

    Args:
        main: module of such names; None: the running one.
    """
    for field in ("entry_point", "vector_entry_point"):
        entry = getattr(spec, field)
        if isinstance(entry, str) and entry.startswith("__main__:"):
            name = entry.partition(":")[2]
            code = load_env_creator(entry) if main is None else getattr(main, name)
            change: dict[str, Any] = {field: code}
            spec = dataclasses.replace(spec, **change)
    return spec


def _find(env_id: str) -> Target:
    module, _, name = env_id.rpartition(":")
    resolved: Any = None
    if module:
        try:
            resolved = importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"env={shown(env_id)} needs module {shown(module)}, which can't be imported "
                f"({error}){_install_hint(module)}"
            ) from error
    package = None if module else package_of(name)
    missing = package is not None and name not in gymnasium.registry
    if package is not None and missing and (is_installed(package) or not in_envpool(name)):
        bring(name, package)
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if module and (made_by := _game(env_id, resolved, name)):
        return made_by
    for part in name.split("."):
        resolved = getattr(resolved, part, None)
    if callable(resolved):
        return as_typed(resolved, env_id) if name in MAKERS else resolved
    if not module and (game := atari.vector_id(name)):
        return _find(game)
    if not module and in_envpool(name):  # last, because it imports envpool
        return EnvSpec(name)
    if module:
        brought = importlib.import_module(module)
        near = nearest(name, names_in(brought) - {name}, before=f"{module}:")
        raise ConfigError(
            f"env={shown(env_id)} is unknown: the module {shown(module)} has neither an "
            f"environment nor a game of this name.{near}"
        )
    near = nearest_module(name) or same_name(name)
    near = near or nearest(name, [*gymnasium.registry, *SCORES])
    raise ConfigError(
        f"env={shown(env_id)} is unknown; register it with gymnasium.register, or name the module "
        f"that does, as in 'module:Id-v0'.{near}"
    )


def _game(env_id: str, module: Any, name: str) -> PettingZooGame | None:
    """Return the factory of PettingZoo's game of this name, or None."""
    try:
        return find_game(module, name)
    except Exception as error:  # a package unknown to headrace
        raise ConfigError(
            f"env={shown(env_id)} needs a module that can't be imported "
            f"({type(error).__name__}: {error}){_install_hint(module.__name__)}"
        ) from error


def _install_hint(module: str) -> str:
    """Return the install command of the game packages of headrace's extra, or ""."""
    in_extra = module.partition(".")[0] in ("pettingzoo", "mpe2")
    return f": {install_line('games')}" if in_extra else ""


def env_name(env: Any) -> str:
    """Return a short name for messages and paths: the id, or the name of the class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, EnvSpec):
        return env.id
    if isinstance(env, Prepared):
        return env_name(env.env)
    if isinstance(env, Tasks):
        return f"{len(env.envs)} tasks"
    if isinstance(env, functools.partial):
        return getattr(env, "__name__", None) or env_name(env.func)
    return getattr(env, "__name__", type(env).__name__)


def check_once(names: Sequence[str]) -> None:
    """Raise ConfigError if a task is listed twice."""
    twice = [name for name in names if names.count(name) > 1]
    valid = f"each task once, not {twice and twice[0]} twice (callables need distinct __name__s)"
    require(not twice, "tasks", ",".join(names), valid)


def import_path(env: Any) -> str:
    """Return ``module:qualified.name`` of a callable or class, or the id of an EnvSpec.

    Objects that can't be looked up by name have a ``<`` in it.
    """
    if isinstance(env, EnvSpec):
        return env.id
    name = getattr(env, "__qualname__", None)
    if name:
        return f"{env.__module__}:{name}"
    return f"{type(env).__module__}:<{type(env).__name__} of {env_name(env)}>"


def in_envpool(env_id: str) -> bool:
    """Return whether envpool is installed and has an environment of this id."""
    if importlib.util.find_spec("envpool") is None:
        return False
    import envpool  # slow import (a second)

    return env_id in envpool.list_all_envs()

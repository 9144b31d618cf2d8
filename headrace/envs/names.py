"""What a user's ``env`` stands for: a Gymnasium id, an EnvSpec, a class or a callable."""

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
from headrace.envs.pettingzoo import MAKERS, PettingZooGame, as_typed, zoo
from headrace.envs.suggestions import names_in, nearest_module
from headrace.envs.wrappers import Wrap, as_wrap
from headrace.errors import ConfigError, nearest, require, shown
from headrace.spaces.unified_spaces import Spaces

Target: TypeAlias = EnvSpec | Callable[..., Any]


@dataclass(frozen=True)
class Prepared:
    """An environment with its wrappers, and what this process has registered.

    In the process that it is sent to, by pickling, the same is registered before it is there.
    """

    env: Target
    wrappers: tuple[Wrap, ...] = ()
    carries: bool = False  # takes along what is registered here

    def __reduce__(self) -> Any:
        specs = _registered() if self.carries else {}
        return _arrive, (self.env, self.wrappers, self.carries, specs)

    @classmethod
    def split(cls, env: Target | Prepared) -> tuple[Target, tuple[Wrap, ...]]:
        """The environment and its wrappers."""
        return (env.env, env.wrappers) if isinstance(env, cls) else (env, ())  # type: ignore


@dataclass(frozen=True)
class Tasks:
    """Several environments that one policy learns, each with actors of its own."""

    envs: tuple[Any, ...]  # as for ``resolve``
    shown: bool = False  # whether observations are to hold the task's number
    joined: bool = False  # whether their spaces are the same (``headrace.envs.unified_tasks``)
    own: tuple[Spaces, ...] = ()  # of each before it was joined

    @property
    def names(self) -> tuple[str, ...]:
        """Of each."""
        return tuple(map(env_name, self.envs))


def envs_of(env: Any) -> tuple[Any, ...]:
    """The environments of several tasks, or the only one."""
    return env.envs if isinstance(env, Tasks) else (env,)


def env_of(env: Any, actor: int) -> Any:
    """What an actor steps, by its number among those of all learners: tasks take turns."""
    envs = envs_of(env)
    return envs[actor % len(envs)]


def _registered() -> dict[str, bytes]:
    """What has been registered here beyond Gymnasium's own, pickled by id."""
    import cloudpickle

    specs = {}
    for name, spec in gymnasium.registry.items():
        if not is_foreign(spec):
            continue
        with contextlib.suppress(Exception):  # what can't travel is told of where it is missed
            specs[name] = cloudpickle.dumps(by_value(spec))
    return specs


def _arrive(
    env: Target, wrappers: tuple[Wrap, ...], carries: bool, specs: dict[str, bytes]
) -> Prepared:
    import pickle

    if specs:  # what is imported later registers the same once more
        warnings.filterwarnings("ignore", message=".*Overriding environment .* already in registry")
    for name, pickled in specs.items():
        if name not in gymnasium.registry:
            gymnasium.registry[name] = pickle.loads(pickled)
    return Prepared(env, wrappers, carries)


class Registry:
    """Nothing but what this process has registered; in another one it is, too, on unpickling."""

    def __reduce__(self) -> Any:
        return _arrive_only, (_registered(),)


def _arrive_only(specs: dict[str, bytes]) -> Registry:
    _arrive(EnvSpec, (), True, specs)
    return Registry()


def resolve(env: Any, wrappers: Iterable[Any] = ()) -> Any:
    """What ``env`` stands for, in a form that can be pickled to a process without its registration.

    Returns:
        the EnvSpec of an id, or the class or callable itself; a :class:`Prepared` of it where there
        are wrappers, or a script's function may make what is registered here only. Of tasks each.

    Raises:
        ConfigError: the id or a wrapper is unknown, or ``env`` is of another type, or a task is
            there twice.
    """
    if isinstance(env, Tasks):
        wrappers = tuple(wrappers)
        each = tuple(resolve(one, wrappers) for one in env.envs)
        check_once([env_name(one) for one in each])  # by whatever ids they were given
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
    # A package registers its environments where it is imported; a script's code may make any.
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
    made = type(env.unwrapped).__name__ if not is_game else type(env).__name__
    spec = getattr(env, "spec", None)
    named = f"the id {spec.id!r}" if isinstance(spec, EnvSpec) else f"the class {made}"
    what = "function with a parameter num_envs" if several else "function"
    raise ConfigError(
        f"env={shown(env)} is an instance of {made}, which can't be shared between actors: give "
        f"{named}, or a {what} that makes it"
    )


def is_foreign(spec: EnvSpec) -> bool:
    """Whether it isn't registered in every process anyway."""
    entry = spec.entry_point or spec.vector_entry_point
    return not (isinstance(entry, str) and entry.startswith(("gymnasium.envs.", "headrace")))


def by_value(spec: EnvSpec, main: Any = None) -> EnvSpec:
    """With objects for names in ``__main__``, which is another module in another process.

    Args:
        main: the module that such names are in; None: the one that runs.
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
    found: Any = None
    if module:
        try:
            found = importlib.import_module(module)
        except (ImportError, TypeError, ValueError) as error:
            raise ConfigError(
                f"env={shown(env_id)} needs module {shown(module)}, which can't be imported "
                f"({error}){_bringing_games(module)}"
            ) from error
    package = None if module else package_of(name)
    missing = package is not None and name not in gymnasium.registry
    if package is not None and missing and (is_installed(package) or not in_envpool(name)):
        bring(name, package)
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    if module and (made_by := _game(env_id, found, name)):
        return made_by
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return as_typed(found, env_id) if name in MAKERS else found
    if not module and (game := atari.vector_id(name)):
        return _find(game)
    if not module and in_envpool(name):  # last, for it imports envpool
        return EnvSpec(name)
    if module:
        brought = importlib.import_module(module)
        near = nearest(name, names_in(brought) - {name}, before=f"{module}:")
        raise ConfigError(
            f"env={shown(env_id)} is unknown: the module {shown(module)} has neither an "
            f"environment nor a game of this name.{near}"
        )
    near = nearest_module(name) or nearest(name, [*gymnasium.registry, *SCORES])
    raise ConfigError(
        f"env={shown(env_id)} is unknown; register it with gymnasium.register, or name the module "
        f"that does, as in 'module:Id-v0'.{near}"
    )


def _game(env_id: str, module: Any, name: str) -> PettingZooGame | None:
    """What makes PettingZoo's game of this name, if it is one."""
    try:
        return zoo(module, name)
    except Exception as error:  # of a package that nobody here knows
        raise ConfigError(
            f"env={shown(env_id)} needs a module that can't be imported "
            f"({type(error).__name__}: {error}){_bringing_games(module.__name__)}"
        ) from error


def _bringing_games(module: str) -> str:
    """The install line of the packages of games that headrace has an extra for, or ""."""
    known = module.partition(".")[0] in ("pettingzoo", "mpe2")
    return ": pip install 'headrace[games]'" if known else ""


def env_name(env: Any) -> str:
    """A short name for messages and paths: the id, or the name of the class or function."""
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
    """Raise ConfigError if a task of these names is there twice."""
    twice = [name for name in names if names.count(name) > 1]
    valid = f"each task once, not {twice and twice[0]} twice (callables need a __name__ each)"
    require(not twice, "tasks", ",".join(names), valid)


def import_path(env: Any) -> str:
    """``module:qualified.name`` of a callable or class; the id of an EnvSpec.

    What can't be found again by a name has a ``<`` in it.
    """
    if isinstance(env, EnvSpec):
        return env.id
    name = getattr(env, "__qualname__", None)
    if name:
        return f"{env.__module__}:{name}"
    return f"{type(env).__module__}:<{type(env).__name__} of {env_name(env)}>"


def in_envpool(env_id: str) -> bool:
    """Whether envpool is installed and has an environment of this id."""
    if importlib.util.find_spec("envpool") is None:
        return False
    import envpool  # takes a second, hence here

    return env_id in envpool.list_all_envs()

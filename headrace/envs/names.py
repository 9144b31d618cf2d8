"""What a user's ``env`` stands for: a Gymnasium id, an EnvSpec, a class or a callable."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any, TypeAlias

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator

from headrace.errors import ConfigError, nearest

Target: TypeAlias = EnvSpec | Callable[..., Any]

_PACKAGES = {"headrace": "headrace_ssa"}  # what registers the ids of a namespace


def resolve(env: Any) -> Target:
    """What ``env`` stands for, in a form that can be pickled to a process without its registration.

    Returns:
        the EnvSpec of an id, or the class or callable itself.

    Raises:
        ConfigError: the id is unknown, or ``env`` is of another type.
    """
    if isinstance(env, str):
        env = _find(env)
    if isinstance(env, EnvSpec):
        # In another process __main__ is another module, so a name in it becomes the object.
        for field in ("entry_point", "vector_entry_point"):
            entry = getattr(env, field)
            if isinstance(entry, str) and entry.startswith("__main__:"):
                change: dict[str, Any] = {field: load_env_creator(entry)}
                env = dataclasses.replace(env, **change)
        return env
    if callable(env):
        return env
    raise ConfigError(
        f"env={env!r} is neither a Gymnasium id, an EnvSpec, an environment class "
        "nor a callable that returns an environment"
    )


def _find(env_id: str) -> Target:
    module, _, name = env_id.rpartition(":")
    module = module or _PACKAGES.get(name.partition("/")[0], "")
    found: Any = None
    if module:
        try:
            found = importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(
                f"env={env_id!r} needs module {module!r}, which can't be imported ({error})"
            ) from error
    if name in gymnasium.registry:
        return gymnasium.registry[name]
    for part in name.split("."):
        found = getattr(found, part, None)
    if callable(found):
        return found
    if not module and in_envpool(name):
        return EnvSpec(name)
    raise ConfigError(
        f"env={env_id!r} is unknown; register it with gymnasium.register, or name the module that "
        f"does, as in 'module:Id-v0'.{nearest(name, gymnasium.registry)}"
    )


def env_name(env: Any) -> str:
    """A short name for messages and paths: the id, or the name of the class or function."""
    if isinstance(env, str):
        return env
    if isinstance(env, EnvSpec):
        return env.id
    if isinstance(env, functools.partial):
        return env_name(env.func)
    return getattr(env, "__name__", type(env).__name__)


def import_path(env: Any) -> str:
    """``module:qualified.name`` of a callable or class, or its bare name if it has none."""
    module, name = getattr(env, "__module__", None), getattr(env, "__qualname__", None)
    return f"{module}:{name}" if module and name else env_name(env)


def in_envpool(env_id: str) -> bool:
    """Whether envpool is installed and has an environment of this id."""
    if importlib.util.find_spec("envpool") is None:
        return False
    import envpool  # takes a second, hence here

    return env_id in envpool.list_all_envs()

"""Sending an environment to another process."""

from __future__ import annotations

from typing import Any

import cloudpickle

from headrace.envs.names import Prepared, Tasks, env_name
from headrace.errors import ConfigError
from headrace.process.pickling import unpicklable_part


def pickled_env(env: Any, *rest: Any) -> bytes:
    """``(env, *rest)`` by cloudpickle.

    Args:
        env: resolved. rest: settings that go with it, its keyword arguments among them.

    Raises:
        ConfigError: a part of it can't be pickled; names the environment and the variable.
    """
    try:
        return cloudpickle.dumps((env, *rest))
    except Exception as error:  # whatever an object's own pickling raises
        raise ConfigError(_reason(env, rest, error)) from error


def _reason(env: Any, rest: tuple[Any, ...], error: Exception) -> str:
    several = env.envs if isinstance(env, Tasks) else (env,)
    for one in several:
        target, wraps = Prepared.split(one)
        for part, path in ((target, env_name(target)), (wraps, "wrappers"), (rest, "env_kwargs")):
            try:
                cloudpickle.dumps(part)
            except Exception:  # as above
                name, value = unpicklable_part(part, path)
                return (
                    f"env={env_name(one)} can't be sent to the processes of actors: it uses "
                    f"{name}, a {type(value).__name__}, which can't be pickled "
                    f"({' '.join(str(error).split())}); create it inside the environment, or give "
                    "transport='serial'"
                )
    return f"env={env_name(env)} can't be sent to the processes of actors ({error})"

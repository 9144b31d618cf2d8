"""Pickles environments for other processes."""

from __future__ import annotations

from typing import Any

import cloudpickle

from headrace.envs.names import Prepared, Tasks, env_name
from headrace.errors import ConfigError
from headrace.processes.pickling import unpicklable_part


def pickled_env(env: Any, *rest: Any) -> bytes:
    """Pickle ``(env, *rest)`` with cloudpickle.

    Args:
        env: a resolved environment.
        rest: settings that go with it, including its keyword arguments.

    Raises:
        ConfigError: a part can't be pickled; the message names the environment and the variable.
    """
    try:
        return cloudpickle.dumps((env, *rest))
    except Exception as error:  # an object's pickling may raise anything
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
                    f"env={env_name(one)} can't be sent to actor processes: it uses {name}, a "
                    f"{type(value).__name__}, which can't be pickled "
                    f"({' '.join(str(error).split())}); create it inside the environment, or give "
                    "transport='serial'"
                )
    return f"env={env_name(env)} can't be sent to actor processes ({error})"

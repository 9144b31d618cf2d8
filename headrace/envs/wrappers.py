"""Wrappers by name, as a command line gives them, or as what a script defines."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import gymnasium
from gymnasium.vector import VectorEnv

from headrace.envs.context import filled
from headrace.errors import ConfigError, nearest
from headrace.validation.names import imported


@dataclass(frozen=True)
class Wrap:
    """One wrapper and its arguments; called with an environment it returns a wrapped one."""

    function: Callable[..., Any]
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    together: Callable[..., VectorEnv] | None = None  # that does it to many stepped at once

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        try:
            wrapped = self.function(env, **filled(self.kwargs))
        except Exception as error:  # what it was given may not fit it in any way
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(f"wrapper {self.name} can't wrap {env}: {reason}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise ConfigError(
                f"wrapper {self.name} returned {type(wrapped).__name__}; it must return a "
                "gymnasium.Env"
            )
        return wrapped


def as_wrap(given: Any) -> Wrap:
    """The wrapper that ``given`` stands for.

    Args:
        given: a callable from Env to Env, or ``NAME`` or ``NAME:JSON``, where NAME is one of
            ``gymnasium.wrappers`` or ``module:name``, and JSON an object of its arguments.

    Raises:
        ConfigError: there is no such wrapper, or it doesn't take such arguments.
    """
    if isinstance(given, Wrap):
        return given
    if callable(given):
        return Wrap(given, getattr(given, "__name__", type(given).__name__))
    if not isinstance(given, str):
        raise ConfigError(
            f"wrapper {given!r} must be a name, 'NAME:JSON' or a callable from Env to Env"
        )
    name, kwargs = _split(given)
    function = _found(name)
    try:
        inspect.signature(function).bind(None, **kwargs)
    except TypeError as error:
        takes = ", ".join(list(inspect.signature(function).parameters)[1:]) or "nothing"
        raise ConfigError(f"wrapper {given!r}: {error}; {name} takes {takes}") from error
    except ValueError:  # some builtins have no signature
        pass
    return Wrap(function, given, kwargs)


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """The name and the arguments; lists become tuples, as wrappers want shapes."""
    at = min((i for i in (text.find(f":{bracket}") for bracket in '{["') if i > 0), default=-1)
    if at < 0:
        return text, {}
    try:
        kwargs = json.loads(text[at + 1 :])
    except ValueError as error:
        raise ConfigError(
            f"wrapper {text!r}: what follows {text[:at]}: is no JSON ({error}); write for example "
            """ResizeObservation:{"shape":[84,84]}"""
        ) from error
    if not isinstance(kwargs, dict):
        raise ConfigError(
            f"wrapper {text!r}: what follows {text[:at]}: must be a JSON object of its arguments, "
            """as in ResizeObservation:{"shape":[84,84]}"""
        )
    return text[:at], {key: _tuples(value) for key, value in kwargs.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _found(name: str) -> Callable[..., Any]:
    known = [
        key for key, value in vars(gymnasium.wrappers).items()
        if isinstance(value, type) and issubclass(value, gymnasium.Wrapper)
    ]  # fmt: skip
    if ":" not in name:
        if name not in known:
            raise ConfigError(
                f"wrapper {name!r} is none of gymnasium.wrappers; your own is 'module:name'."
                f"{nearest(name, known)}"
            )
        return getattr(gymnasium.wrappers, name)  # type: ignore[no-any-return]
    found = imported(f"wrapper {name!r}", name)
    if not callable(found):
        raise ConfigError(f"wrapper {name!r} is a {type(found).__name__}, not a wrapper")
    return found  # type: ignore[no-any-return]

"""Resolves wrappers given as command-line names or as objects that a script defines."""

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
    """One wrapper and its arguments; calling it with an environment returns the wrapped one."""

    function: Callable[..., Any]
    name: str
    kwargs: dict[str, Any] = field(default_factory=dict)
    together: Callable[..., VectorEnv] | None = None  # equivalent wrapper of vector environments

    def __call__(self, env: gymnasium.Env) -> gymnasium.Env:
        try:
            wrapped = self.function(env, **filled(self.kwargs))
        except Exception as error:  # the wrapper may fail in any way
            reason = " ".join(str(error).split()) or repr(error)
            raise ConfigError(f"wrapper {self.name} can't wrap {env}: {reason}") from error
        if not isinstance(wrapped, gymnasium.Env):
            raise ConfigError(
                f"wrapper {self.name} returned {type(wrapped).__name__}; it must return a "
                "gymnasium.Env"
            )
        return wrapped


def as_wrap(wrapper: Any) -> Wrap:
    """Resolve a wrapper.

    Args:
        wrapper: a callable from Env to Env, or ``NAME`` or ``NAME:JSON``, where NAME is one of
            ``gymnasium.wrappers`` or ``module:name``, and JSON an object of its arguments.

    Raises:
        ConfigError: the wrapper is unknown, or doesn't accept the arguments.
    """
    if isinstance(wrapper, Wrap):
        return wrapper
    if callable(wrapper):
        return Wrap(wrapper, getattr(wrapper, "__name__", type(wrapper).__name__))
    if not isinstance(wrapper, str):
        raise ConfigError(
            f"wrapper {wrapper!r} must be a name, 'NAME:JSON' or a callable from Env to Env"
        )
    name, kwargs = _split(wrapper)
    function = _lookup(name)
    try:
        inspect.signature(function).bind(None, **kwargs)
    except TypeError as error:
        takes = ", ".join(list(inspect.signature(function).parameters)[1:]) or "nothing"
        raise ConfigError(f"wrapper {wrapper!r}: {error}; {name} takes {takes}") from error
    except ValueError:  # some builtins have no signature
        pass
    return Wrap(function, wrapper, kwargs)


def _split(text: str) -> tuple[str, dict[str, Any]]:
    """Split the name and the arguments; lists become tuples, as wrappers expect shapes."""
    at = min((i for i in (text.find(f":{bracket}") for bracket in '{["') if i > 0), default=-1)
    if at < 0:
        return text, {}
    try:
        kwargs = json.loads(text[at + 1 :])
    except ValueError as error:
        raise ConfigError(
            f"wrapper {text!r}: the part after {text[:at]}: is not valid JSON ({error}); write for "
            "example "
            """ResizeObservation:{"shape":[84,84]}"""
        ) from error
    if not isinstance(kwargs, dict):
        raise ConfigError(
            f"wrapper {text!r}: the part after {text[:at]}: must be a JSON object of its "
            "arguments, "
            """as in ResizeObservation:{"shape":[84,84]}"""
        )
    return text[:at], {key: _tuples(value) for key, value in kwargs.items()}


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _lookup(name: str) -> Callable[..., Any]:
    available = [
        key for key, value in vars(gymnasium.wrappers).items()
        if isinstance(value, type) and issubclass(value, gymnasium.Wrapper)
    ]  # fmt: skip
    if ":" not in name:
        if name not in available:
            raise ConfigError(
                f"wrapper {name!r} is not in gymnasium.wrappers; name a custom one as "
                "'module:name'."
                f"{nearest(name, available)}"
            )
        return getattr(gymnasium.wrappers, name)  # type: ignore[no-any-return]
    value = imported(f"wrapper {name!r}", name)
    if not callable(value):
        raise ConfigError(f"wrapper {name!r} is a {type(value).__name__}, not a wrapper")
    return value  # type: ignore[no-any-return]

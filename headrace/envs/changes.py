"""Changes to environments during a run: method calls and attribute assignments."""

from __future__ import annotations

import contextlib
import json
import traceback
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv

from headrace.errors import (
    ChangeFailed,
    ConfigError,
    EnvironmentFault,
    EnvironmentLost,
    HeadraceError,
    nearest,
    shown,
)

EACH = "headrace_change"  # attribute of an environment in a separate process: applies a change
_MAX_BYTES = 16_384  # limit of a change as JSON, which is sent through a pipe
_MAX_LAYERS = 50
_RESERVED = ("reset", "step", "close", "render")  # methods that only headrace calls
_INNER = ("env", "games", "_env", "aec_env", "par_env")  # attributes that hold the next layer


@dataclass(frozen=True)
class EnvChange:
    """One change that a callback made, see ``Trainer.call_envs`` and ``Trainer.set_env_attr``."""

    kind: str  # "call" or "set"
    name: str  # name of the method or attribute
    args: list[Any] = field(default_factory=list)  # arguments of the method, or the new value
    kwargs: dict[str, Any] = field(default_factory=dict)
    evaluation: bool = False  # apply in evaluations
    training: bool = True  # apply in actors
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def text(self) -> str:
        """The call as a user would write it, for messages."""
        if self.kind == "set":
            return f"set_env_attr({self.name!r}, {shown(self.args[0])})"
        args = [shown(x) for x in self.args] + [f"{k}={shown(x)}" for k, x in self.kwargs.items()]
        return f"call_envs({', '.join([repr(self.name), *args])})"

    def to_json(self) -> str:
        """Serialise the change for :meth:`from_json`.

        Raises:
            ConfigError: an argument is not a JSON value, or the text is too long.
        """
        try:
            text = json.dumps(asdict(self), default=_plain)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(
                f"{self.text} is saved with the run, so its arguments must be JSON values "
                f"(numbers, strings, lists, dicts, True, False and None): {error}"
            ) from error
        if len(text) > _MAX_BYTES:
            raise ConfigError(
                f"{self.kind} of {self.name!r} has {len(text):,} bytes of JSON, above the limit of "
                f"{_MAX_BYTES:,}: pass the name of a file instead"
            )
        return text

    @staticmethod
    def from_json(text: str) -> EnvChange:
        """Read what :meth:`to_json` wrote; tuples become lists.

        Raises:
            TypeError, ValueError: it isn't a change, or is one that :func:`call` would reject.
        """
        change = EnvChange(**json.loads(text))
        is_call = change.kind == "call" and isinstance(change.args, list)
        is_set = change.kind == "set" and isinstance(change.args, list) and len(change.args) == 1
        if not (is_call or is_set) or not isinstance(change.kwargs, dict):
            raise ValueError(f"{shown(text)} isn't a change to an environment")
        if reason := _why_rejected(change):
            raise ValueError(reason)
        return change


def _plain(value: Any) -> Any:
    """Convert NumPy numbers and arrays to JSON values."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON value")


def call(
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    evaluation: bool = False,
    training: bool = True,
) -> EnvChange:
    """Create the change that calls a method; raises ConfigError as :meth:`EnvChange.to_json`."""
    return _checked(EnvChange("call", name, list(args), kwargs, evaluation, training))


def assign(name: str, value: Any, evaluation: bool = False, training: bool = True) -> EnvChange:
    """Create the change that sets an attribute; raises ConfigError as :meth:`EnvChange.to_json`."""
    return _checked(EnvChange("set", name, [value], {}, evaluation, training))


def _checked(change: EnvChange) -> EnvChange:
    if reason := _why_rejected(change):
        raise ConfigError(reason)
    return EnvChange.from_json(change.to_json())


def _why_rejected(change: EnvChange) -> str | None:
    """Return why the name of a method or attribute is not allowed, or None."""
    name = change.name
    if not isinstance(name, str) or not name.isidentifier() or name.startswith("_"):
        kind_of_name = "method" if change.kind == "call" else "attribute"
        return (
            f"{shown(name)} is not a valid {kind_of_name} name here: give an identifier without a "
            "leading underscore"
        )
    if name in _RESERVED:
        return f"{change.text} is not allowed: only headrace calls {name}"
    return None


def apply(envs: VectorEnv, change: EnvChange, name: str) -> None:
    """Apply a change to every environment of a vector environment of any engine.

    Args:
        name: name of the environment, for messages.

    Raises:
        ChangeFailed: the method or attribute doesn't exist, or the environment raised.
        EnvironmentLost: the process of an environment died or didn't answer.
    """
    try:
        _apply(envs, change, name)
    except EnvironmentLost:
        raise
    except EnvironmentFault as error:
        raise ChangeFailed(str(error), change.id) from error


def _apply(envs: VectorEnv, change: EnvChange, name: str) -> None:
    layers = list(_layers(envs))
    loop = next((x for x in layers if isinstance(x, SyncVectorEnv)), None)
    apart = next((x for x in layers if hasattr(type(x), "change_each")), None)
    users = next((x for x in layers if isinstance(x, AsyncVectorEnv)), None)
    if loop is not None:
        for i, env in enumerate(loop.envs):
            change_one(env, change, name, i)
    elif apart is not None:
        apart.change_each(change)
    elif users is not None:
        with _as_fault(change, name):
            if change.kind == "call":
                users.call(change.name, *change.args, **change.kwargs)
            else:
                users.set_attr(change.name, change.args * users.num_envs)
    else:
        change_one(envs, change, name)


def change_one(env: Any, change: EnvChange, name: str, number: int | None = None) -> None:
    """Apply a change to the outermost layer of one environment that has the method or attribute.

    Args:
        name: name of the environment, for messages.
        number: its number in the vector environment, for messages.
    """
    every = list(_layers(env))
    own = [x for x in every if change.name in getattr(x, "__dict__", {}) or _of_class(x, change)]
    holder = next(iter(own or [x for x in every if hasattr(x, change.name)]), None)
    calls = change.kind == "call"
    if holder is None or (calls and not callable(getattr(holder, change.name))):
        candidates = {word for x in every for word in _public(x, calls)} - {*_RESERVED}
        raise EnvironmentFault(
            f"{change.text} needs {'a method' if calls else 'an attribute'} {change.name!r}, "
            f"which {name} doesn't have.{nearest(change.name, candidates)}"
        )
    with _as_fault(change, name, number):
        if change.kind == "set":
            setattr(holder, change.name, change.args[0])
        else:
            getattr(holder, change.name)(*change.args, **change.kwargs)


def _public(layer: Any, methods: bool) -> Iterator[str]:
    """Yield the names of a layer's public methods, or of its other public attributes."""
    attributes = getattr(layer, "__dict__", {})
    for word in dir(layer):
        value = attributes[word] if word in attributes else getattr(type(layer), word, None)
        if not word.startswith("_") and callable(value) == methods:
            yield word


def _of_class(layer: Any, change: EnvChange) -> bool:
    return hasattr(type(layer), change.name)


def _layers(env: Any) -> Iterator[Any]:
    """Yield an environment and the layers inside it, from the outside in."""
    visited: set[int] = set()
    while env is not None and id(env) not in visited and len(visited) < _MAX_LAYERS:
        visited.add(id(env))
        yield env
        attributes = getattr(env, "__dict__", {})
        env = next((attributes[key] for key in _INNER if attributes.get(key) is not None), None)


@contextlib.contextmanager
def _as_fault(change: EnvChange, name: str, number: int | None = None) -> Iterator[None]:
    """Turn an exception of the environment into an EnvironmentFault with a one-sentence message."""
    try:
        yield
    except HeadraceError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = name if number is None else f"{name} (environment {number} of its actor)"
        raise EnvironmentFault(
            f"{change.text} failed in {where} with {type(error).__name__}: "
            f"{' '.join(str(error).split())} ({Path(last.filename).name}, line {last.lineno})"
        ) from error

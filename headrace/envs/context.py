"""Context of the environment being constructed, for simulators that need a port or display each."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeAlias

Role: TypeAlias = Literal["train", "eval", "probe"]


@dataclass(frozen=True)
class EnvContext:
    """Position of an environment within its run; see :func:`env_context`."""

    index: int = 0
    """Number of this environment, from 0. Two environments of a run that are open at the same time
    never share an index. The environments of a replaced actor keep theirs."""
    actor: int = 0
    """Number of the actor, counted over all learners; 0 in evaluations."""
    rank: int = 0
    """Rank of the learner."""
    role: Role = "eval"
    """``train``; ``eval`` in evaluations, videos and calls outside a run; or ``probe`` before
    training, when headrace examines an environment and closes it."""
    num_envs: int = 1
    """Number of environments that one call makes. A vector environment owns the indices from
    ``index`` to ``index + num_envs - 1``."""

    def at(self, number: int) -> EnvContext:
        """Return the context of the single environment at this offset from ``index``."""
        return replace(self, index=self.index + number, num_envs=1)


_CURRENT: ContextVar[EnvContext | None] = ContextVar("headrace_env_context", default=None)
_FIELD = re.compile("{(" + "|".join(field.name for field in fields(EnvContext)) + ")}")


def env_context() -> EnvContext:
    """Return the context of the environment being constructed; call it in a constructor or factory.

    Elsewhere it returns ``EnvContext()``, so that factories also work outside a run.
    """
    return _CURRENT.get() or EnvContext()


@contextlib.contextmanager
def making(context: EnvContext) -> Iterator[None]:
    """Make :func:`env_context` return ``context`` inside the block, in this thread."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def made_in(
    context: EnvContext, make: Callable[..., Any], kwargs: dict[str, Any], **more: Any
) -> Any:
    """Call ``make`` in this context, with the placeholders of its arguments :func:`filled`."""
    with making(context):
        return make(**filled(kwargs), **more)


def filled(value: Any) -> Any:
    """Copy arguments, replacing placeholders by the values of the current context.

    The placeholders are ``{index}``, ``{actor}``, ``{rank}``, ``{role}`` and ``{num_envs}``. A
    string that is just a placeholder becomes the value itself, an int for a number. Other braces
    stay unchanged. Dicts, lists and tuples are searched recursively.
    """
    if isinstance(value, dict):
        return {key: filled(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(filled, value))
    if not isinstance(value, str) or "{" not in value:
        return value
    context = env_context()
    if placeholder := _FIELD.fullmatch(value):
        return getattr(context, placeholder[1])
    return _FIELD.sub(lambda match: str(getattr(context, match[1])), value)


@dataclass(frozen=True)
class Creator:
    """Callable that makes one environment of a vector in its own context.

    Args:
        make: factory without arguments.
    """

    make: Callable[[], Any]
    context: EnvContext

    def __call__(self) -> Any:
        with making(self.context):
            return self.make()


def numbered(create: Callable[[], Any], num_envs: int) -> list[Callable[[], Any]]:
    """Return a constructor for each of ``num_envs`` environments, with consecutive indices."""
    if not isinstance(create, Creator):
        return [create] * num_envs
    return [replace(create, context=create.context.at(i)) for i in range(num_envs)]

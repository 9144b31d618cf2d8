"""Which environment of a run is being made, for simulators that need a port or a display each."""

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
    """Where an environment is in its run; see :func:`env_context`."""

    index: int = 0
    """Of this environment, from 0. No two environments of a run that are open at the same time
    share an index, and the environments of an actor that is replaced keep theirs."""
    actor: int = 0
    """Of the actor, counted over all learners; 0 in evaluations."""
    rank: int = 0
    """Of the learner."""
    role: Role = "eval"
    """``train``; ``eval`` in evaluations, films and calls outside a run; ``probe`` in a first look
    at the environment, which is closed before others are made."""
    num_envs: int = 1
    """Environments that are made by one call: more than 1 for a vector environment, which has the
    indices from ``index`` on."""

    def at(self, number: int) -> EnvContext:
        """Of one of the environments that begin at this index."""
        return replace(self, index=self.index + number, num_envs=1)


_CURRENT: ContextVar[EnvContext | None] = ContextVar("headrace_env_context", default=None)
_FIELD = re.compile("{(" + "|".join(field.name for field in fields(EnvContext)) + ")}")


def env_context() -> EnvContext:
    """The environment that is being made, to be called in its constructor or factory.

    Elsewhere it is ``EnvContext()``, so that a factory also works outside a run.
    """
    return _CURRENT.get() or EnvContext()


@contextlib.contextmanager
def making(context: EnvContext) -> Iterator[None]:
    """Inside, :func:`env_context` returns ``context``, in this thread."""
    token = _CURRENT.set(context)
    try:
        yield
    finally:
        _CURRENT.reset(token)


def made_in(
    context: EnvContext, make: Callable[..., Any], kwargs: dict[str, Any], **more: Any
) -> Any:
    """What ``make`` returns for these arguments in this context, see :func:`filled`."""
    with making(context):
        return make(**filled(kwargs), **more)


def filled(value: Any) -> Any:
    """A copy of arguments in which ``{index}``, ``{actor}``, ``{rank}``, ``{role}`` and
    ``{num_envs}`` are replaced by the current context's.

    A text that is nothing else becomes the value itself, an int for a number. Other braces are left
    alone. Dicts, lists and tuples are walked.
    """
    if isinstance(value, dict):
        return {key: filled(part) for key, part in value.items()}
    if type(value) in (list, tuple):
        return type(value)(map(filled, value))
    if not isinstance(value, str) or "{" not in value:
        return value
    context = env_context()
    if whole := _FIELD.fullmatch(value):
        return getattr(context, whole[1])
    return _FIELD.sub(lambda found: str(getattr(context, found[1])), value)


@dataclass(frozen=True)
class Creator:
    """Makes one environment of a vector, in its context.

    Args:
        make: called with no arguments.
    """

    make: Callable[[], Any]
    context: EnvContext

    def __call__(self) -> Any:
        with making(self.context):
            return self.make()


def numbered(create: Callable[[], Any], num_envs: int) -> list[Callable[[], Any]]:
    """What makes each of ``num_envs`` environments: a Creator counts on from its own index."""
    if not isinstance(create, Creator):
        return [create] * num_envs
    return [replace(create, context=create.context.at(i)) for i in range(num_envs)]

"""The errors that headrace raises on purpose: one clear sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints


class HeadraceError(Exception):
    """Base of all errors below."""


class ConfigError(HeadraceError, ValueError):
    """A setting is wrong; nothing was started."""


class EnvironmentFault(HeadraceError, RuntimeError):
    """An environment broke its contract (NaN, wrong shape)."""


class ActorFailed(HeadraceError, RuntimeError):
    """An actor died more often than ``max_restarts`` allows, or never answered."""


class WorkerFailed(HeadraceError, RuntimeError):
    """A worker of a cluster of environments never came up, or died once too often."""


class AgentFault(HeadraceError, RuntimeError):
    """An agent that workers were given failed there; carries its traceback."""


class LearnerFailed(HeadraceError, RuntimeError):
    """A learner of several never arrived, died, fell silent, or went its own way."""


class OthersLost(LearnerFailed):
    """What a learner says of others that it waits for; the reason is with them."""


class CheckpointError(HeadraceError, RuntimeError):
    """A run directory or checkpoint is missing, corrupt or of another kind."""


@dataclass(frozen=True)
class Valid:
    """What the values of a setting have in common, as an annotation of its type."""

    words: str
    holds: Callable[[Any], bool]


ABOVE_0 = Valid("above 0", lambda x: x > 0)
AT_LEAST_0 = Valid("0 or more", lambda x: x >= 0)
AT_LEAST_1 = Valid("1 or more", lambda x: x >= 1)
A_COUNT = Valid("1 or more (nearest: 1)", lambda x: x >= 1)
A_WHOLE_COUNT = Valid(A_COUNT.words, lambda x: isinstance(x, int) and x >= 1)
SECONDS = Valid("above 0 seconds", lambda x: x > 0)
RESTARTS = Valid("0 or more (nearest: 0)", lambda x: x >= 0)


def check_fields(settings: object, prefix: str = "") -> None:
    """Raise ConfigError unless each field of a dataclass is what its annotation says, or None.

    None counts where the annotated type allows it. ``prefix`` comes before a field's name.
    """
    for name, valid, optional in _annotated(type(settings)):
        value = getattr(settings, name)
        if optional and value is None:
            continue
        words = f"{valid.words}, or None" if optional else valid.words
        require(valid.holds(value), prefix + name, value, words)


def _annotated(cls: type) -> list[tuple[str, Valid, bool]]:
    """(field, what is valid, whether None is) for each :class:`Valid` of a dataclass.

    Those of its bases count, also where it gives a field another default.
    """
    found = [
        (name, valid, type(None) in get_args(hint.__origin__))
        for base in cls.__mro__
        for name, hint in get_type_hints(base, include_extras=True).items()
        for valid in getattr(hint, "__metadata__", ())
        if isinstance(valid, Valid)
    ]
    return list(dict.fromkeys(found))


def require(condition: bool, name: str, value: object, valid: str) -> None:
    """Raise ConfigError naming the setting, its value and what is valid unless it holds."""
    if not condition:
        raise ConfigError(f"{name}={value!r} must be {valid}")


def require_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ConfigError naming the setting, its value and the choices unless it is one of them."""
    known = list(known)
    if value not in known:
        hint = nearest(str(value).lower(), known)
        raise ConfigError(f"{name}={value!r} is unknown; choose {', '.join(known)}.{hint}")


def nearest(word: str, known: Iterable[str], count: int = 3) -> str:
    """`` Did you mean …?`` with the closest known words, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(map(repr, close))}?" if close else ""

"""The errors that headrace raises on purpose: one clear sentence each."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


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

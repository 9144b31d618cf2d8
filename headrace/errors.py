"""The errors that headrace raises on purpose: one clear sentence each."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

_flags: ContextVar[bool] = ContextVar("_flags", default=False)  # the caller is a command line


class HeadraceError(Exception):
    """Base of all errors below."""


class ConfigError(HeadraceError, ValueError):
    """A setting is wrong; nothing was started."""


class NoRoom(ConfigError):
    """A run needs more memory or open files than are free here now; another time there may be."""


class EnvironmentFault(HeadraceError, RuntimeError):
    """An environment broke its contract (NaN, wrong shape)."""


class EnvironmentLost(EnvironmentFault):
    """An environment raised, died or never answered; a fresh one may do better."""


class StacksChanged(EnvironmentFault):
    """Raised when observations that looked like frame stacks turn out not to be."""


class ChangeFailed(EnvironmentFault):
    """Environments don't support a change that a callback made, or raised while they applied it.

    Args:
        change: id of the change.
    """

    def __init__(self, message: str, change: str = "") -> None:
        super().__init__(message)
        self.change = change


class NonFinite(HeadraceError, ArithmeticError):
    """A loss, gradient, weight or output of the policy is NaN or infinite; no step was taken."""


class ActorFailed(HeadraceError, RuntimeError):
    """An actor died more often than ``max_restarts`` allows, or never answered."""


class WorkerFailed(HeadraceError, RuntimeError):
    """A worker of a cluster of environments never came up, or died once too often."""


class AgentFault(HeadraceError, RuntimeError):
    """An agent that workers were given failed there; carries its traceback."""


class LearnerFailed(HeadraceError, RuntimeError):
    """A learner of several never arrived, died, fell silent, or went its own way."""


class LaunchFailed(HeadraceError, RuntimeError):
    """What was to bring machines up refused, never answered, or lost them."""


class OthersLost(LearnerFailed):
    """What a learner says of others that it waits for; the reason is with them."""


class CheckpointError(HeadraceError, RuntimeError):
    """A run directory or checkpoint is missing, corrupt or of another kind."""


def on_one_line(error: BaseException) -> str:
    """An error's class and text, without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


@contextlib.contextmanager
def in_flags() -> Iterator[None]:
    """Make messages write settings as command-line flags inside the block."""
    token = _flags.set(True)
    try:
        yield
    finally:
        _flags.reset(token)


def setting(name: str, value: str = "True") -> str:
    """Format a setting for the caller: ``overwrite=True``, or ``--overwrite`` in a command.

    Args:
        value: the value as Python code.
    """
    if not _flags.get():
        return f"{name}={value}"
    flag = f"--{name.replace('_', '-')}"
    if value == "True":
        return flag
    if value.startswith("{"):  # JSON, which a shell would take apart
        return f"{flag} '{value}'"
    return f"{flag} {value.removeprefix(chr(39)).removesuffix(chr(39))}"


def wrapper(name: str) -> str:
    """Format the setting that adds a wrapper, as a keyword or as a flag."""
    return f"--wrapper '{name}'" if _flags.get() else f"wrappers=({name!r},)"


def shown(value: object) -> str:
    """A value on one line of at most 100 characters, whatever its own repr does."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object may raise anything; an int of 5,000 digits does
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:60]} … {text[-30:]}"


def require(condition: bool, name: str, value: object, valid: str) -> None:
    """Raise ConfigError naming the setting, its value and what is valid unless it holds."""
    if not condition:
        raise ConfigError(f"{name}={shown(value)} must be {valid}")


def require_choice(name: str, value: object, known: Iterable[str]) -> None:
    """Raise ConfigError naming the setting, its value and the choices unless it is one of them."""
    known = list(known)
    if value not in known:
        hint = nearest(str(value).lower(), known)
        raise ConfigError(f"{name}={shown(value)} is unknown; choose {', '.join(known)}.{hint}")


def nearest(word: str, known: Iterable[str], count: int = 3, before: str = "") -> str:
    """`` Did you mean …?`` with the closest known words, or an empty string.

    Args:
        before: what each of them is told with in front, and isn't compared.
    """
    close = difflib.get_close_matches(word, list(known), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(repr(before + one) for one in close)}?" if close else ""

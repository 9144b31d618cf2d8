"""Exceptions that headrace raises on purpose, and helpers for their messages."""

from __future__ import annotations

import contextlib
import difflib
import os
import shlex
from collections.abc import Iterable, Iterator
from contextvars import ContextVar

_flags: ContextVar[bool] = ContextVar("_flags", default=False)  # the caller is a command line


class HeadraceError(Exception):
    """Base class of headrace's errors."""


class ConfigError(HeadraceError, ValueError):
    """A setting is invalid; no process was started."""


class NoRoom(ConfigError):
    """A run needs more memory or open files than are currently free here."""


class EnvironmentFault(HeadraceError, RuntimeError):
    """An environment violated its interface (NaN, wrong shape)."""


class EnvironmentLost(EnvironmentFault):
    """An environment raised, died or didn't answer; a new one may work."""


class StacksChanged(EnvironmentFault):
    """Raised when observations that looked like frame stacks turn out not to be."""


class ChangeFailed(EnvironmentFault):
    """An environment doesn't support a change from a callback, or raised while applying it.

    Args:
        change: id of the change.
    """

    def __init__(self, message: str, change: str = "") -> None:
        super().__init__(message)
        self.change = change


class NonFinite(HeadraceError, ArithmeticError):
    """A loss, gradient, weight or output of the policy is NaN or infinite; no step was taken."""


class ActorFailed(HeadraceError, RuntimeError):
    """An actor died more often than ``max_restarts`` allows, or didn't answer."""


class WorkerFailed(HeadraceError, RuntimeError):
    """A worker of a ClusterEnv didn't start, or died too often."""


class AgentFault(HeadraceError, RuntimeError):
    """An agent raised in a ClusterEnv worker; includes its traceback."""


class LearnerFailed(HeadraceError, RuntimeError):
    """A learner of several didn't arrive, died, hung, or diverged from the others."""


class LaunchFailed(HeadraceError, RuntimeError):
    """The system that starts machines refused, didn't answer, or lost them."""


class OthersLost(LearnerFailed):
    """A learner lost other learners, which have the cause."""


class CheckpointError(HeadraceError, RuntimeError):
    """A run directory or checkpoint is missing, corrupt or incompatible."""


def bounded(text: str, limit: int = 10_000) -> str:
    """Escape characters that can't be encoded, and cut the middle of text longer than ``limit``.

    Environment errors may contain file names that are not UTF-8, or megabytes of text.
    """
    if len(text) > limit:
        left_out = f"\n… {len(text) - limit:,} characters left out …\n"
        text = text[: limit // 2] + left_out + text[-limit // 2 :]
    return text.encode(errors="backslashreplace").decode()


def on_one_line(error: BaseException) -> str:
    """Format an error's class and text without line breaks, in at most about 2,000 characters."""
    return " ".join(bounded(f"{type(error).__name__}: {error}", 2000).split())


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
    if value.startswith("{"):  # JSON, quoted for the shell
        return f"{flag} '{value}'"
    return f"{flag} {value.removeprefix(chr(39)).removesuffix(chr(39))}"


def resume_command(run_dir: object) -> str:
    """Format the call that continues a run, in Python or in the shell."""
    relative = os.path.relpath(str(run_dir))
    text = str(run_dir) if relative.startswith("..") else relative
    return f"headrace resume {shlex.quote(text)}" if _flags.get() else f"hr.resume({text!r})"


def wrapper(name: str) -> str:
    """Format the setting that adds a wrapper, as a keyword or as a flag."""
    return f"--wrapper '{name}'" if _flags.get() else f"wrappers=({name!r},)"


def shown(value: object) -> str:
    """Format a value on one line of at most 100 characters, even if its repr raises."""
    try:
        text = " ".join(repr(value).split())
    except Exception:  # an object may raise anything; an int of 5,000 digits does
        text = f"<{type(value).__name__}>"
    return text if len(text) <= 100 else f"{text[:60]} … {text[-30:]}"


def require(condition: bool, name: str, value: object, valid: str) -> None:
    """Raise ConfigError with the setting, its value and the valid ones, unless it holds."""
    if not condition:
        raise ConfigError(f"{name}={shown(value)} must be {valid}")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise ConfigError with the setting, its value and the choices, unless it is one of them."""
    choices = list(choices)
    if value not in choices:
        hint = nearest(str(value).lower(), choices)
        raise ConfigError(f"{name}={shown(value)} is unknown; choose {', '.join(choices)}.{hint}")


def nearest(word: str, words: Iterable[str], count: int = 3, before: str = "") -> str:
    """Return `` Did you mean …?`` with the closest known words, or an empty string.

    Args:
        before: prefix of each suggestion, which isn't compared.
    """
    close = difflib.get_close_matches(word, list(words), n=count, cutoff=0.5)
    return f" Did you mean {', '.join(repr(before + one) for one in close)}?" if close else ""

"""Runs a scheduler's programs with a timeout and one-sentence errors."""

from __future__ import annotations

import shutil
import subprocess

from headrace.errors import ConfigError, LaunchFailed

_TIMEOUT_S = 60.0


def require_programs(*names: str, remedy: str) -> None:
    """Raise ConfigError unless all of these programs are on the path; ``remedy`` ends the
    message.
    """
    missing = [name for name in names if shutil.which(name) is None]
    if missing:
        raise ConfigError(f"{', '.join(missing)} not found on the path: {remedy}")


def called(*command: str, stdin: str = "", timeout_s: float = _TIMEOUT_S) -> str:
    """Return the output of a program.

    Raises:
        LaunchFailed: it failed, with its message, or didn't answer in ``timeout_s`` seconds.
    """
    try:
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        raise LaunchFailed(
            f"{command[0]} did not answer within {timeout_s:g} s: is the scheduler's server up?"
        ) from None
    except OSError as error:
        raise LaunchFailed(f"{command[0]} can't be started: {error}") from None
    if done.returncode != 0:
        words = " ".join((done.stderr or done.stdout).split())
        raise LaunchFailed(f"{command[0]} failed: {words or f'exit code {done.returncode}'}")
    return done.stdout

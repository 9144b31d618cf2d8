"""Errors for optional packages that are missing, with the line that installs them."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator

from headrace.errors import ConfigError


@contextlib.contextmanager
def needs(feature: str, extra: str) -> Iterator[None]:
    """Turn a failed import inside the block into a :class:`ConfigError`.

    Args:
        feature: what needs the package, as the start of the message.
        extra: the extra of headrace that installs it.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "headrace", "headrace_ssa"):  # an error of ours
            raise
        raise _missing(feature, package, extra) from error


def require(feature: str, extra: str, *packages: str) -> None:
    """Check that packages are installed, without importing them.

    Raises:
        ConfigError: one isn't.
    """
    for package in packages:
        if not is_installed(package):
            raise _missing(feature, package, extra)


def is_installed(package: str) -> bool:
    """Return whether a top-level package can be imported; it isn't."""
    return importlib.util.find_spec(package) is not None


def install_line(*extras: str) -> str:
    """Return the command that installs extras of headrace."""
    return f"pip install 'headrace[{','.join(extras)}]'"


def _missing(feature: str, package: str, extra: str) -> ConfigError:
    return ConfigError(f"{feature} needs {package}, which isn't installed: {install_line(extra)}")

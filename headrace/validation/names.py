"""Imports objects named in the settings."""

from __future__ import annotations

import pkgutil
from typing import Any

from headrace.errors import ConfigError


def imported(setting: str, name: str, or_else: str = "") -> Any:
    """Return the object named ``"module:attribute"``, importing its module.

    Args:
        setting: the setting with its value, for messages.
        or_else: alternative remedy, appended to the message.

    Raises:
        ConfigError: the module or attribute doesn't exist.
    """
    try:
        if ":" not in name:
            raise ValueError("it names no module")
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{setting} can't be imported ({error}): write 'module:name' with the module's folder "
            f"on PYTHONPATH{or_else}"
        ) from error

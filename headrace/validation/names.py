"""What a name in the settings stands for."""

from __future__ import annotations

import pkgutil
from typing import Any

from headrace.errors import ConfigError


def imported(setting: str, name: str, or_else: str = "") -> Any:
    """What ``"module:attribute"`` stands for; its module is imported.

    Args:
        setting: which says it, with the name, for the sentence.
        or_else: what else would help, ends the sentence.

    Raises:
        ConfigError: there is no such module or attribute.
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

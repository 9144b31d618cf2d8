"""Saves a policy by itself, where it is known what goes with its weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from headrace.errors import ConfigError

Saver: TypeAlias = Callable[[Any, Path], Path]


def saved_by(saver: Saver | None, policy: Any, path: Path) -> Path:
    """Save a policy into a folder, which is returned.

    Args:
        saver: writes the weights and the settings of their run; None: these aren't known.

    Raises:
        ConfigError: they aren't known.
    """
    if saver is None:
        raise ConfigError(
            f"save({str(path)!r}) needs a policy from hr.train, hr.resume or hr.load(run), whose "
            "run is known; of several policies or tasks save all of them, and load one"
        )
    return saver(policy, path)

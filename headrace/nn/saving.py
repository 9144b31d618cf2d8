"""Saves a policy without its run, together with the settings needed to load it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from headrace.errors import ConfigError

Saver: TypeAlias = Callable[[Any, Path], Path]


def saved_by(saver: Saver | None, policy: Any, path: Path) -> Path:
    """Save a policy to a folder and return the folder.

    Args:
        saver: writes the weights and the settings of their run; None if these are unknown.

    Raises:
        ConfigError: ``saver`` is None.
    """
    if saver is None:
        raise ConfigError(
            f"save({str(path)!r}) needs a policy from hr.train, hr.resume or hr.load(run); with "
            "several policies or tasks, save all of them together and load one; with a Trainer, "
            "use trainer.save(path)"
        )
    return saver(policy, path)

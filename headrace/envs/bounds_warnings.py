"""Warnings about observations beyond the bounds of their space, from one process of a run."""

from __future__ import annotations

import re
import warnings

import gymnasium
import numpy as np
from gymnasium.spaces import Box

from headrace.spaces.walk import Path, place

_BEYOND = "beyond the bounds of their space"


def ignore_bounds_warnings() -> None:
    """Suppress this process's warnings about values outside their bounds; another process warns."""
    warnings.filterwarnings("ignore", f".* {_BEYOND}", UserWarning)


def bounds_warnings_ignored() -> bool:
    """Return True after :func:`ignore_bounds_warnings`."""
    texts = [text for action, text, *_ in warnings.filters if action == "ignore"]
    return any(isinstance(text, re.Pattern) and _BEYOND in text.pattern for text in texts)


def warn_beyond(name: str, space: Box, array: np.ndarray, path: Path) -> None:
    """Warn once per process about values outside their bounds; training continues."""
    slack = 1e-4 * np.maximum(1.0, np.abs(array)) if array.dtype.kind == "f" else 0
    if ((array < space.low - slack) | (array > space.high + slack)).any():
        warnings.warn(
            f"{name} returns observations{place(path)} {_BEYOND}, {brief(space)}: "
            "correct the bounds of the space, or remove them",
            stacklevel=2,
        )


def brief(space: gymnasium.Space) -> str:
    """Format a space in one line."""
    text = " ".join(str(space).split())
    return text if len(text) < 120 else text[:117] + "..."

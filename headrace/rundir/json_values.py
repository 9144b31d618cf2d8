"""Converts values for JSON, which has neither NaN nor infinity."""

from __future__ import annotations

import math
from typing import Any


def plain(values: Any) -> Any:
    """Copy nested dicts, lists and tuples, replacing non-finite numbers by None."""
    if isinstance(values, dict):
        return {name: plain(value) for name, value in values.items()}
    if isinstance(values, list | tuple):
        return [plain(value) for value in values]
    return None if isinstance(values, float) and not math.isfinite(values) else values

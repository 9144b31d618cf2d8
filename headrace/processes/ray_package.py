"""Looks up headrace's Ray package by name: the parts that call this don't depend on it."""

from __future__ import annotations

import importlib
from typing import Any


def ray_package(module: str) -> Any:
    """Return the module ``headrace.ray.<module>``, which is imported on first use."""
    return importlib.import_module(f"headrace.ray.{module}")

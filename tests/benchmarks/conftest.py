"""Fixtures that import files of benchmarks/ as these import each other."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> None:
    """Put benchmarks/ first in the import path."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))


@pytest.fixture
def benchmark() -> Callable[[str], ModuleType]:
    """Imports a file of benchmarks/ by name."""
    return importlib.import_module

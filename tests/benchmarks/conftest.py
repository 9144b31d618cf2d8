"""Fixtures that import files of benchmarks/ as these import each other."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest
from modules import book_forgotten


@pytest.fixture(autouse=True)
def importable(monkeypatch) -> Iterator[None]:
    """Puts benchmarks/ first in the import path; the book's modules and environments go again."""
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "benchmarks"))
    with book_forgotten():
        yield


@pytest.fixture
def benchmark() -> Callable[[str], ModuleType]:
    """Imports a file of benchmarks/ by name."""
    return importlib.import_module

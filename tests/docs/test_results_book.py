"""The results book in docs/results is what its stored runs say, and README quotes only that."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest
from modules import book_forgotten

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results"
AGAIN = "python benchmarks/results.py --report --output docs/results"


@pytest.fixture(scope="module")
def book():
    """Modules of benchmarks/book, by name."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        with book_forgotten():
            yield lambda name: importlib.import_module(f"book.{name}")
    finally:
        sys.path.remove(str(ROOT / "benchmarks"))


@pytest.mark.parametrize("name", ["impala", "impact", "ddppo", "clusterenv", "lesson", "peers"])
def test_a_page_shows_its_stored_runs(book, name):
    page = book("readme").page_named(name)
    text = book("page").render(page, page.data(RESULTS / "data"))
    assert text == (RESULTS / f"{name}.md").read_text(encoding="utf-8"), f"run: {AGAIN}"


def test_readme_quotes_rows_that_are_not_stale(book):
    readme = book("readme")
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert readme.between(text) == readme.table(RESULTS / "data"), f"run: {AGAIN}"
    assert len(readme.QUOTES) <= readme.MOST_ROWS

"""Docstrings, comments and messages contain no phrase of the dialect list."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from english import PATTERN

REPOSITORY = Path(__file__).parents[1]
ROOT = REPOSITORY / "headrace"
PACKAGES = (
    "actors", "algos", "cli", "cluster_env", "config", "distributed", "doctor", "envs",
    "evaluating", "games", "integrations",
    "jobs", "launch", "learner", "native", "nn", "ops", "processes", "ray", "recipes", "reporting",
    "rundir", "spaces", "studies", "trainer", "transport", "zoo",
)  # fmt: skip
FRAGMENT = re.compile("(Of|What|Whether|Who|Whose|How|Where|When)\\b")
BEGINS = re.compile(rf"[\"'][\s\\]*{FRAGMENT.pattern}")
"""Possible fragments, in docstrings and other strings."""
FOLDERS = [
    *(ROOT / package for package in PACKAGES),
    *(REPOSITORY / folder for folder in ("headrace_ssa", "examples", "benchmarks", "docs/_site")),
    REPOSITORY / "tests",
]
QUOTES_DIALECT = ("english.py", "test_english.py", "test_english_pages.py")
FILES = sorted(
    file
    for file in [*ROOT.glob("*.py"), *(f for folder in FOLDERS for f in folder.rglob("*.py"))]
    if file.name not in QUOTES_DIALECT
)


def dialect(source: str) -> list[str]:
    """Return phrases of the list in comments and in strings of several words."""
    if not PATTERN.search(source):
        return []  # most files; tokenizing is slow
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    kinds = tokenize.COMMENT, tokenize.STRING
    texts = [
        (t.start[0], re.sub(r"{[^{}]*}", "", t.string))  # without expressions of f-strings
        for t in tokens
        if t.type in kinds and " " in t.string
    ]
    return [f"{line}: {match[0]}" for line, text in texts for match in PATTERN.finditer(text)]


def first_lines(source: str) -> Iterator[tuple[str, str]]:
    """Yield the first docstring line of the module, its classes and its public functions."""
    if not BEGINS.search(source):
        return  # most files; parsing is slow
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "name", "module"), text.splitlines()[0]


@pytest.mark.parametrize("folder", sorted({str(f.parent.relative_to(REPOSITORY)) for f in FILES}))
def test_text_is_plain_english(folder):
    for file in (file for file in FILES if file.parent == REPOSITORY / folder):
        source = file.read_text(encoding="utf-8")
        assert not dialect(source), file
        fragments = [(name, line) for name, line in first_lines(source) if FRAGMENT.match(line)]
        assert not fragments, file


@pytest.mark.parametrize(
    ("source", "phrases"),
    [
        ("x = 1  # begins anew", ["1: anew"]),
        ('"""A film beside it."""', ["1: film", "1: beside"]),
        ('raise E(f"{x} is no number")', ["1: is no "]),
        ('x["mends"]  # there is no limit', []),
        ("y = f\"fixed by {x['mends']}\"", []),
        ('"""Except ``beside``."""', []),
    ],
)
def test_the_list_finds_dialect(source, phrases):
    assert dialect(source) == phrases


def test_fragments_are_found():
    source = '"""Of weights."""\nclass A:\n    """Who acts."""\ndef f():\n    """Offer it."""\n'
    assert [name for name, line in first_lines(source) if FRAGMENT.match(line)] == ["module", "A"]

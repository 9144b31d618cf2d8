"""Numbers of Hypothesis examples and test cases: few in ``make test``, more in the full suite."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import settings

FULL = "HEADRACE_TESTS_FULL"
"""Environment variable under which all run."""


def examples(count: int, **others: bool) -> settings:
    """Return Hypothesis settings with this number of examples and no deadline."""
    return settings(
        max_examples=count if FULL in os.environ else max(10, count // 3), deadline=None, **others
    )


def few_of(cases: Sequence[Any], few: Sequence[Any]) -> list[Any]:
    """Return cases of a parametrised test, of which ``make test`` runs only a few.

    ``few`` may also have cases that ``cases`` lacks.
    """
    rest = (case if isinstance(case, tuple) else (case,) for case in cases if case not in few)
    return [*few, *(pytest.param(*case, marks=pytest.mark.full) for case in rest)]


def few_named(cases: Mapping[str, Any], few: Sequence[str]) -> list[Any]:
    """Return named cases of a parametrised test, of which ``make test`` runs only a few."""
    assert set(few) <= set(cases)
    marks = {name: () if name in few else pytest.mark.full for name in cases}
    return [pytest.param(case, id=name, marks=marks[name]) for name, case in cases.items()]

"""What only ``make test-full`` tries: all examples of Hypothesis, and all cases of some tests."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings

FULL = "HEADRACE_TESTS_FULL"
"""The variable under which all are tried."""


def examples(count: int, **others: bool) -> settings:
    """Settings for so many examples, without a limit of time for each."""
    return settings(
        max_examples=count if FULL in os.environ else max(10, count // 3), deadline=None, **others
    )


def few_of(cases: Sequence[Any], few: Sequence[Any]) -> list[Any]:
    """Return cases of a parametrised test, of which ``make test`` runs only a few."""
    rest = (case if isinstance(case, tuple) else (case,) for case in cases if case not in few)
    return [*few, *(pytest.param(*case, marks=pytest.mark.full) for case in rest)]

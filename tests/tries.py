"""How many examples tests of Hypothesis try: all in ``make test-full``, a third otherwise."""

from __future__ import annotations

import os

from hypothesis import settings

FULL = "HEADRACE_TESTS_FULL"
"""The variable under which all are tried."""


def examples(count: int, **others: bool) -> settings:
    """Settings for so many examples, without a limit of time for each."""
    return settings(
        max_examples=count if FULL in os.environ else max(10, count // 3), deadline=None, **others
    )

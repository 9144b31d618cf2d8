"""Populations of these tests draw nothing, except in tests marked ``draws``."""

from __future__ import annotations

import pytest

from headrace.studies.pbt import report


@pytest.fixture(autouse=True)
def undrawn(request, monkeypatch):
    """Disables the plot of a population, which is slow."""
    if request.node.get_closest_marker("draws") is None:
        monkeypatch.setattr(report, "draw", lambda *_: None)

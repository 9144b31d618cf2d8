"""Fixtures of the actor tests."""

from __future__ import annotations

import importlib.util

import pytest

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs Ray")


@pytest.fixture(params=["serial", "shm", pytest.param("ray", marks=[needs_ray, pytest.mark.ray])])
def way(request):
    """Returns the settings of each transport."""
    if request.param == "ray":
        request.getfixturevalue("ray_cluster")
        return {"cluster": "ray", "transport": "shm"}
    return {"transport": request.param}

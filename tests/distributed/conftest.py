"""Fixtures of whole runs with several learners."""

from __future__ import annotations

from typing import Any

import pytest

import headrace as hr
from tests.distributed.runs import ENVS, FRAGMENT


@pytest.fixture
def several(tiny, tmp_path):
    """Creates the config of a tiny run of some learners, with 12 environments in total."""

    def make(num_learners: int, name: str = "run", **settings: Any) -> hr.Config:
        defaults = {
            "num_learners": num_learners,
            "envs_per_actor": ENVS,
            "fragment_length": FRAGMENT,
            "transport": "serial",
            "total_steps": 800,
            "run_dir": str(tmp_path / name),
        }
        return tiny(**(defaults | settings))

    return make

"""Reward transformations match the papers' formulas."""

from __future__ import annotations

import math
from typing import get_args, get_type_hints

import pytest
import torch

from headrace.algos.common import Hyperparameters
from headrace.errors import ConfigError
from headrace.ops.rewards import TRANSFORMS, transformed

REWARDS = [-1e9, -30.0, -1.0, -0.4, 0.0, 0.3, 1.0, 2.5, 400.0, 1e9]


def oracle(r: float, transform: str) -> float:
    if transform == "abs_one":
        return -1.0 if r < -1 else 1.0 if r > 1 else r
    if transform == "soft_asymmetric":
        return 0.3 * min(math.tanh(r), 0.0) + 5.0 * max(math.tanh(r), 0.0)
    return r


@pytest.mark.parametrize("transform", TRANSFORMS)
def test_a_transform_is_its_papers_formula(transform):
    rewards = torch.tensor(REWARDS, dtype=torch.float64).view(2, 5)
    expected = torch.tensor([oracle(r, transform) for r in REWARDS], dtype=torch.float64)
    torch.testing.assert_close(transformed(rewards, transform), expected.view(2, 5))


def test_the_setting_has_the_same_choices():
    assert get_args(get_type_hints(Hyperparameters)["reward_transform"]) == TRANSFORMS
    with pytest.raises(ConfigError, match=r"transform='abs_on' is unknown.*'abs_one'"):
        transformed(torch.zeros(1), "abs_on")

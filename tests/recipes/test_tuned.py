"""Recipes of continuous control that need more than independent noise."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "env", "gamma"),
    [
        ("mountaincar-continuous", "MountainCarContinuous-v0", 0.99),
        ("swimmer", "Swimmer-v5", 0.999),
    ],
)
@pytest.mark.parametrize("algorithm", ["ppo", "appo"])
def test_exploration_is_pink(name, env, gamma, algorithm):
    config = hr.recipe(name, algorithm)
    assert (config.env, config.algo_name) == (env, algorithm)
    assert (config.algo.noise_color, config.algo.gamma) == (1.0, gamma)


def test_only_measured_algorithms_have_a_setting():
    assert hr.recipe("mountaincar-continuous", "impala").algo.noise_color == 1.0
    with pytest.raises(ConfigError, match="no setting for algorithm 'impala'"):
        hr.recipe("swimmer", "impala")

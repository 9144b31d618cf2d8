"""Recipes for continuous control that need correlated noise."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "algorithm", "env", "gamma"),
    [
        ("mountaincar-continuous", "ppo", "MountainCarContinuous-v0", 0.99),
        ("mountaincar-continuous", "impala", "MountainCarContinuous-v0", 0.99),
        ("swimmer", "ppo", "Swimmer-v5", 0.999),
    ],
)
def test_exploration_is_pink(name, algorithm, env, gamma):
    config = hr.recipe(name, algorithm)
    assert (config.env, config.algo_name) == (env, algorithm)
    assert (config.algo.noise_color, config.algo.gamma) == (1.0, gamma)


def test_only_algorithms_that_solve_the_task_have_a_setting():
    with pytest.raises(ConfigError, match="no setting for algorithm 'appo'"):
        hr.recipe("swimmer")

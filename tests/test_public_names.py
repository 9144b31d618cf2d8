"""Names and keywords of ``hr`` for editors and type checkers."""

from __future__ import annotations

import ast
import dataclasses
import inspect
from pathlib import Path
from typing import get_type_hints

import pytest

import headrace as hr
from headrace.errors import HeadraceError
from headrace.recipes import RECIPES
from headrace.rundir.config_keywords import Settings


def test_the_keywords_of_train_are_the_settings_of_a_run_with_their_types():
    settings = get_type_hints(hr.Config)
    fields = {f.name: settings[f.name] for f in dataclasses.fields(hr.Config)}
    assert get_type_hints(Settings) == {
        name: kind for name, kind in fields.items() if name not in ("env", "algo")
    }
    parameters = inspect.signature(hr.train).parameters
    assert list(parameters) == ["env", "algo", "callbacks", "quiet", "settings"]
    assert parameters["settings"].annotation == "Unpack[Settings]"


def test_type_checkers_see_the_names_that_there_are():
    tree = ast.parse(Path(hr.__file__).read_text())
    block = next(n for n in tree.body if isinstance(n, ast.If))
    seen = {alias.asname for line in block.body for alias in line.names}
    assert seen == set(hr.__all__)
    assert {"ConfigError", "Evaluation", "recipe"} <= seen


def test_a_recipe_is_a_config_to_start_from():
    config = hr.recipe("lunarlander", "ppo")
    assert (config.env, config.algo_name) == ("LunarLander-v3", "ppo")
    assert hr.recipe("cartpole").algo_name == "appo"
    with pytest.raises(hr.ConfigError, match="Did you mean 'pendulum'"):
        hr.recipe("pendulun")
    assert issubclass(hr.ConfigError, HeadraceError)
    assert set(RECIPES) >= {"cartpole", "lunarlander"}
    assert {f.name for f in dataclasses.fields(hr.Evaluation)} >= {"mean", "std", "episodes"}


def test_a_wrong_keyword_of_train_is_told_with_its_owner():
    for name, words in {
        "total_step": "Did you mean 'total_steps'",
        "learning_rate": r"APPO\(learning_rate=…\)",
        "hidden": r"Network\(hidden=…\)",
    }.items():
        with pytest.raises(hr.ConfigError, match=words):
            hr.train("CartPole-v1", **{name: 1})
    with pytest.raises(hr.ConfigError, match=r"PPO\(clip=…\)"):
        hr.train("CartPole-v1", hr.PPO(), clip=0.1)

"""Wrappers by name, on the command line and in Python, and the packages that bring environments."""

from __future__ import annotations

import re

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete
from gymnasium.vector import SyncVectorEnv
from worlds import CountingVectorEnv

import headrace as hr
from headrace.cli import main
from headrace.envs import packages
from headrace.envs.make import make_vec, opened
from headrace.envs.packages import Package, package_of
from headrace.envs.wrappers import as_wrap
from headrace.errors import ConfigError
from headrace.trainer import start


class Screens(gymnasium.Env):
    """An image, and a meaningless word."""

    observation_space = Dict(screen=Box(0, 255, (48, 64, 3), np.uint8), noise=Discrete(5))
    action_space = Box(0.0, 10.0, (2,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        assert self.action_space.contains(np.asarray(action, np.float32))
        return self.observation_space.sample(), round(float(action[0])), False, False, {}


def flat(env):
    return gymnasium.wrappers.TransformObservation(
        env, lambda obs: obs["screen"], env.observation_space["screen"]
    )


ALL = [
    'FilterObservation:{"filter_keys":["screen"]}',
    f"{__name__}:flat",
    "GrayscaleObservation",
    'FrameStackObservation:{"stack_size":4}',
    'RescaleAction:{"min_action":-1.0,"max_action":1.0}',
    'TimeLimit:{"max_episode_steps":3}',
]


@pytest.mark.parametrize("engine", ["auto", "sync", "threads"])
def test_wrappers_go_around_each_environment_in_their_order(engine):
    envs = make_vec(Screens, 2, engine, wrappers=ALL)
    assert envs.single_observation_space.shape == (4, 48, 64)
    assert envs.single_action_space == Box(-1.0, 1.0, (2,))
    envs.reset(seed=0)
    rewards, ends = zip(*(envs.step(np.ones((2, 2)))[1:4:2] for _ in range(4)), strict=True)
    assert np.array(rewards)[:, 0].tolist() == [10.0, 10.0, 10.0, 0.0]
    assert np.array(ends)[:, 0].tolist() == [False, False, True, False]
    envs.close()


def test_auto_takes_single_environments_where_there_are_wrappers():
    taken, envs = opened("CartPole-v1", 2, wrappers=[flatten := "FlattenObservation"])
    assert (taken, type(envs)) == ("sync", SyncVectorEnv)
    envs.close()
    for engine, env in (("native", "CartPole-v1"), ("auto", CountingVectorEnv)):
        with pytest.raises(ConfigError, match=f"all environments at once, and {flatten} wraps one"):
            make_vec(env, 2, engine, wrappers=[flatten])


def test_a_run_is_trained_evaluated_filmed_and_resumed_with_its_wrappers(tmp_path, capsys):
    folder = str(tmp_path / "run")
    sizes = ["--num-actors=1", "--envs-per-actor=2", "--fragment-length=4", "--total-steps=16"]
    wrap = ["--wrapper", 'TimeLimit:{"max_episode_steps":3}', "--wrapper", "FlattenObservation"]
    serial = ["--transport", "serial", "--eval-episodes", "2", "--run-dir", folder]
    assert main(["train", "a2c", "--env-id", "CartPole-v1", *wrap, *sizes, *serial]) == 0
    assert "CartPole-v1 + TimeLimit:" in capsys.readouterr().out
    assert main(["evaluate", folder, "--episodes", "2"]) == 0
    assert "length 3.0" in capsys.readouterr().out
    hr.resume(folder, total_steps=32)
    config = hr.Config("CartPole-v1", wrappers=wrap[1::2]).to_json()
    assert config["wrappers"] == wrap[1::2]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("ResizeObservatoin", ["not in gymnasium.wrappers", "'ResizeObservation'"]),
        ("nowhere:Wrapper", ["'nowhere:Wrapper' can't be imported"]),
        ("headrace.validation.ranges:ABOVE_0", ["is a Range, not a wrapper"]),
        ('TimeLimit:{"max_episode_steps":', ["is not valid JSON", "for example ResizeObservation"]),
        ("TimeLimit:[3]", ["must be a JSON object"]),
        ('TimeLimit:{"steps":3}', ['"steps":3', "takes max_episode_steps"]),
        ("TimeLimit", ["missing a required argument", "max_episode_steps"]),
        (3, ["wrapper 3 must be a name"]),
    ],
)
def test_a_wrong_wrapper_is_a_sentence(given, words):
    with pytest.raises(ConfigError) as error:
        as_wrap(given)
    assert "\n" not in str(error.value)
    for word in words:
        assert word in str(error.value)


@pytest.mark.parametrize("engine", ["auto", "threads"])
def test_a_wrapper_that_does_not_fit_is_a_sentence(engine):
    with pytest.raises(ConfigError, match=r"wrapper GrayscaleObservation can't wrap .*CartPole"):
        make_vec("CartPole-v1", 1, engine, wrappers=["GrayscaleObservation"])
    with pytest.raises(ConfigError, match="returned int; it must return"):
        make_vec("CartPole-v1", 1, engine, wrappers=[lambda env: 3])


def test_settings_take_a_list_of_wrappers():
    assert hr.Config(wrappers=["FlattenObservation"]).wrappers == ("FlattenObservation",)
    assert hr.Config(wrappers=[flat]).to_json()["wrappers"] == [f"{__name__}:flat"]
    for wrong in (3, [3]):
        with pytest.raises(ConfigError, match=r"wrappers=.*must be"):
            hr.Config(wrappers=wrong)


def test_a_package_is_imported_for_its_environments_and_its_absence_named(monkeypatch, tmp_path):
    register = "def register_own_envs():\n    gymnasium.register('Own-v0', 'worlds:CountingEnv')\n"
    (tmp_path / "own_package.py").write_text(f"import gymnasium\n{register}")
    (tmp_path / "half_package.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    known = {
        "Own-": Package("own_package", "own-package"),
        "Half-": Package("half_package", "half-package"),
        "Absent/": Package("absent_package.sub", "'absent[all]'"),
    }
    monkeypatch.setattr(packages, "_BEGINNINGS", known)
    try:
        make_vec("Own-v0", 1).close()
    finally:
        gymnasium.registry.pop("Own-v0", None)
    with pytest.raises(ConfigError, match=r"'Absent/A-v0' .* pip install 'absent\[all\]'"):
        make_vec("Absent/A-v0", 1)
    with pytest.raises(ConfigError, match=r"half_package.*'no_such_dependency'.*pip install half"):
        make_vec("Half-v0", 1)


def test_known_ids_have_their_packages():
    pips = {
        "ALE/Pong-v5": "ale-py",
        "PongNoFrameskip-v4": "ale-py",
        "BabyAI-GoToObj-v0": "minigrid",
        "FetchReach-v4": "gymnasium-robotics",
        "highway-fast-v0": "highway-env",
        "dm_control/walker-walk-v0": "'shimmy[dm-control]'",
        "VizdoomBasic-v1": "vizdoom",
    }
    found = {env_id: package_of(env_id) for env_id in pips}
    assert {env_id: package and package.pip for env_id, package in found.items()} == pips
    assert package_of("CartPole-v1") is None


def test_a_network_that_screens_make_huge_is_told_with_the_remedy(monkeypatch):
    monkeypatch.setattr(start, "_LARGE", 1_000_000)  # parameters
    policies = [
        hr.Policy(Box(0, 255, (*sides, 3), np.uint8), Discrete(3), hr.Network(hidden=(32,)))
        for sides in ((40, 40), (100, 120))
    ]
    small, large = (start.large_network(hr.Config(), policy) for policy in policies)
    words = r"million parameters.*100 x 120: wrappers=.'ResizeObservation:{\"shape\":\[84,84\]}',"
    assert small is None
    assert re.search(words, large or "")

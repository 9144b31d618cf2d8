"""engine="auto" takes the fastest engine for the named environment, and prints it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.spaces import Box, Dict, Discrete, Tuple
from worlds import CountingEnv, CountingVectorEnv

import headrace as hr
from headrace.envs import make
from headrace.envs.make import opened
from headrace.errors import ConfigError
from headrace.spaces.agreement import difference


def taken(env, **settings) -> str:
    name, envs = opened(env, 2, **settings)
    envs.close()
    return name


class Wider(CountingVectorEnv):
    """Its observations differ from the single environment's."""

    def __init__(self, num_envs: int) -> None:
        super().__init__(num_envs)
        self.single_observation_space = Box(-1, 1, (9,))


def test_a_native_version_with_other_spaces_is_not_taken_for_the_environment():
    assert taken(EnvSpec("Same-v0", CountingEnv, vector_entry_point=CountingVectorEnv)) == "native"
    spec = EnvSpec("Other-v0", CountingEnv, vector_entry_point=Wider)
    assert taken(spec) == "sync"
    assert taken(spec, engine="native") == "native"  # which was named


def test_envpool_is_taken_where_its_spaces_are_gymnasium_s(monkeypatch):
    pytest.importorskip("envpool")
    monkeypatch.delitem(gymnasium.registry, "Catch-v0", raising=False)  # that of the benchmarks
    expected = {
        "CartPole-v1": "native",
        "Pendulum-v1": "envpool",
        "Acrobot-v1": "envpool",
        "LunarLander-v3": "envpool",  # which states no bounds of its observations
        "FrozenLake-v1": "envpool",
        "Blackjack-v1": "sync",  # a Tuple of three, one array of three in envpool
        "Catch-v0": "envpool",  # only this engine has it
    }
    assert {env: taken(env) for env in expected} == expected


def test_an_id_of_a_package_that_is_missing_is_not_another_s_of_the_same_name(monkeypatch):
    pytest.importorskip("envpool")
    if gymnasium.registry.get("MiniGrid-Empty-5x5-v0"):
        pytest.skip("MiniGrid is installed")
    monkeypatch.setattr("headrace.envs.names.is_installed", lambda package: False)
    with pytest.raises(ConfigError, match=r"pip install minigrid; engine='envpool' makes one"):
        opened("MiniGrid-Empty-5x5-v0", 2)
    assert taken("MiniGrid-Empty-5x5-v0", engine="envpool") == "envpool"


def test_envpools_mujoco_takes_the_float32_actions_of_gymnasium_s(monkeypatch):
    pytest.importorskip("envpool")
    name, envs = opened("HalfCheetah-v5", 2)
    assert name == "envpool"  # though it takes float64 itself
    assert envs.single_action_space == Box(-1, 1, (6,), np.float32)
    envs.reset(seed=0)
    got, pool = [], envs.unwrapped._pool
    seen = SimpleNamespace(step=lambda x: got.append(x) or pool.step(x), close=pool.close)
    monkeypatch.setattr(envs.unwrapped, "_pool", seen)
    action = np.full((2, 6), 0.1, np.float32)
    envs.unwrapped.step(action)
    envs.close()
    assert got[0].dtype == np.float64
    assert (got[0] == action).all()


FLOATS = Box(-1, 1, (2,))


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        (FLOATS, Box(-np.inf, np.inf, (2,)), ""),
        (FLOATS, Box(-1, 1, (2,), np.float64), "float64"),
        (Discrete(3), Discrete(3, start=1), "start=1"),
        (Discrete(3), Box(0, 2, (1,), np.int32), "int32"),
        (Tuple([Discrete(3)]), Tuple([Discrete(3), Discrete(2)]), "Tuple"),
        (Dict(a=FLOATS), Dict(a=Box(-1, 1, (3,))), "at 'a' is Box"),
        (Box(0, 255, (4,), np.uint8), Box(0, 1, (4,), np.uint8), "uint8"),
    ],
)
def test_what_makes_spaces_differ(ours, theirs, words):
    found = difference(ours, Discrete(2), theirs, Discrete(2))
    assert bool(found) == bool(words)
    assert words in found


def test_bounds_of_actions_count_up_to_rounding():
    rounded = Box(np.float32(-1.0001), 1, (2,))
    assert difference(FLOATS, FLOATS, FLOATS, rounded) == ""
    assert "its action space is" in difference(FLOATS, FLOATS, FLOATS, Box(-2, 2, (2,)))


def test_the_single_environment_is_made_for_the_comparison_once_in_a_run(
    tmp_path, monkeypatch, capsys
):
    compared = []
    check = make._check_agrees
    monkeypatch.setattr(make, "_check_agrees", lambda *a: (compared.append(a[0]), check(*a)))
    sizes = {"num_actors": 2, "envs_per_actor": 2, "fragment_length": 4, "total_steps": 32}
    sizes |= {"eval_episodes": 0, "algo": hr.A2C(), "transport": "serial"}
    hr.train("CartPole-v1", run_dir=str(tmp_path / "run"), **sizes)
    assert compared == ["native"]
    config = json.loads((tmp_path / "run" / "config.json").read_text())["config"]
    assert config["engine"] == "native"
    assert "a2c on CartPole-v1 (engine native): " in capsys.readouterr().out

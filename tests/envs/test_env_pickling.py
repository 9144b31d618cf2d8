"""Environments that can't be sent to actors are refused with the variable that can't be pickled."""

from __future__ import annotations

import functools
import socket
import threading

import gymnasium
import pytest

import headrace as hr
from headrace.envs.env_pickling import pickled_env
from headrace.envs.names import resolve
from headrace.errors import ConfigError


def over(value, how):
    """Return a factory that holds a value in one of several ways, and the name in the message."""

    def closure():
        return gymnasium.make("CartPole-v1") if value else None

    def nested():
        return closure()

    class Env(gymnasium.Env):
        held = value

    return {
        "closure": (closure, "value"),
        "nested": (nested, "value"),
        "lambda": (lambda: value, "value"),
        "partial": (functools.partial(gymnasium.make, "CartPole-v1", autoreset=value), "autoreset"),
        "class": (Env, "held"),
    }[how]


def values():
    yield "lock", threading.Lock()
    yield "socket", socket.socket()
    yield "generator", (i for i in range(3))


@pytest.mark.parametrize("how", ["closure", "nested", "lambda", "partial", "class"])
@pytest.mark.parametrize("kind", ["lock", "socket", "generator"])
def test_the_environment_and_the_variable_are_named(kind, how):
    value = dict(values())[kind]
    env, variable = over(value, how)
    with pytest.raises(ConfigError, match=r"can't be sent to actor processes") as caught:
        pickled_env(resolve(env))
    sentence = str(caught.value)
    assert "env=" in sentence
    assert variable in sentence
    assert "transport='serial'" in sentence
    assert f"a {type(value).__name__}," in sentence
    assert "\n" not in sentence


def test_a_run_is_refused_before_any_actor_starts(tmp_path):
    env, _ = over(threading.Lock(), "closure")
    config = hr.Config(env, run_dir=str(tmp_path / "run"), total_steps=64)
    with pytest.raises(ConfigError, match=r"'?value'?, a lock"):
        hr.Trainer(config, notify=lambda text: None)
    assert not (tmp_path / "run").exists()


def test_what_can_be_pickled_travels():
    assert pickled_env(resolve(functools.partial(gymnasium.make, "CartPole-v1")), {"a": 1})

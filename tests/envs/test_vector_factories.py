"""Functions that return a VectorEnv, in any autoreset mode and with vector wrappers."""

from __future__ import annotations

import functools
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers.vector import NormalizeObservation, RecordEpisodeStatistics
from worlds import CountingEnv, CountingGame
from worlds.reporting import Reporting

import headrace as hr


def made(num_envs: int = 1, mode: str = "NextStep", wrap=None):
    envs = SyncVectorEnv([Reporting] * num_envs, autoreset_mode=AutoresetMode(mode))
    return wrap(envs) if wrap else envs


def one_too_few(num_envs):
    return made(num_envs - 1)


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_a_run_sees_whole_episodes_and_the_statistics_of_a_wrapper(tmp_path, mode):
    seen = []
    env = functools.partial(made, mode=mode, wrap=RecordEpisodeStatistics)
    policy = hr.train(
        env, hr.PPO(), [lambda r: seen.append(r)], total_steps=200, run_dir=tmp_path / "r",
        num_actors=1, envs_per_actor=2, transport="serial", eval_episodes=3,
    )  # fmt: skip
    assert (seen[-1].episode_return, seen[-1].episode_length) == (4.0, 4.0)
    assert seen[-1].metrics["env/episode/r"] == 4.0
    assert seen[-1].metrics["env/is_success"] == 1.0
    played = hr.evaluate(policy, env, 3)
    assert (played.mean, played.metrics["parts/drive"]) == (4.0, 4.0)
    config = json.loads((tmp_path / "r/config.json").read_text())["config"]
    assert config["engine"] == "native"


@pytest.mark.parametrize("env", [
    lambda num_envs: made(num_envs), functools.partial(made, wrap=NormalizeObservation),
    functools.partial(gymnasium.make_vec, "CartPole-v1"),
])  # fmt: skip
def test_forms_of_functions(env):
    envs = hr.make_vec(env, 3)
    assert envs.reset(seed=0)[0].shape[0] == envs.num_envs == 3
    assert envs.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    envs.close()


def test_a_function_of_num_envs_may_return_a_single_environment():
    envs = hr.make_vec(lambda num_envs=1: CountingEnv(num_envs + 4), 3)
    assert isinstance(envs, SyncVectorEnv)
    envs.close()


def test_kwargs_are_passed_on():
    envs = hr.make_vec(made, 2, env_kwargs={"mode": "SameStep"})
    assert envs.reset(seed=0)[0].shape == (2, 2)
    envs.close()
    with pytest.raises(hr.ConfigError, match="takes mode, wrap, but no 'mod'"):
        hr.make_vec(made, 2, env_kwargs={"mod": "SameStep"})


@pytest.mark.parametrize(("env", "words"), [
    (lambda: made(2), "give the function the parameter num_envs"),
    (one_too_few, "returned 2 environments for num_envs=3"),
])  # fmt: skip
def test_functions_that_return_something_else_are_refused(env, words):
    with pytest.raises(hr.ConfigError, match=words):
        hr.make_vec(env, 3)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: gymnasium.make("CartPole-v1"), "give the id 'CartPole-v1', or a function"),
    (lambda: gymnasium.make_vec("CartPole-v1", 2), "a function with a parameter num_envs that"),
    (CountingEnv, "give the class CountingEnv"),
    (made, "give the class SyncVectorEnv"),
    (CountingGame, "is an instance of CountingGame"),
    (lambda: [CountingEnv, CountingEnv], "is a list: give one id, class or function"),
    (lambda: (CountingEnv,), "is a tuple: give one id, class or function"),
])  # fmt: skip
def test_instances_are_refused_in_one_sentence(make, words):
    env = make()
    for refuse in (hr.train, lambda env: hr.Config(env=env), lambda env: hr.make_vec(env, 1)):
        with pytest.raises(hr.ConfigError, match=words) as error:
            refuse(env)
        assert "\n" not in str(error.value)


def test_a_batch_of_observations_is_not_that_of_the_step_before():
    envs = hr.make_vec(lambda num_envs: SyncVectorEnv([CountingEnv] * num_envs), 2)
    before = envs.reset(seed=0)[0]
    kept = np.array(before)
    envs.step(np.zeros(2, np.int64))
    assert np.array_equal(before, kept)
    envs.close()

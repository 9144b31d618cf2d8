"""Numbers in infos become one value per episode, whatever form the infos have."""

from __future__ import annotations

import contextlib
import json

import gymnasium
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from worlds.reporting import STEPS, Reporting, ReportingVector

import headrace as hr
from headrace.envs.adapters import next_step
from headrace.envs.info_metrics import MAX_NAMES, InfoMetrics, means_of, written


def collected(envs, chosen=None, num_steps=3 * (STEPS + 1)) -> dict[str, float]:
    """Return the means over the episodes of some steps."""
    metrics = InfoMetrics(envs.num_envs, written(chosen))
    with contextlib.closing(envs):
        envs.reset(seed=0)
        begins = np.zeros(envs.num_envs, bool)
        for _ in range(num_steps):
            actions = np.zeros(envs.num_envs, np.int64)
            *_, terminated, truncated, infos = envs.step(actions)
            ends = terminated | truncated
            metrics.note(infos, begins, ends)
            begins = ends
    return means_of(metrics.take())


@pytest.mark.parametrize("engine", ["sync", "threads", "async"])
def test_numbers_of_the_last_step_are_found(engine):
    found = collected(hr.make_vec(Reporting, 3, engine))
    assert found == {
        "env/is_success": 1.0,
        "env/extra/crashes": 3.0,
        "env/parts/drive": 4.0,
        "env/not_finite": 9.0,  # 3 episodes of 3 environments
    }


def test_each_reduction_is_over_the_steps_of_an_episode_and_leaves_the_reset_out():
    each = {"mean": 2.5, "last": 4.0, "sum": 10.0, "min": 1.0, "max": 4.0}
    for how, value in each.items():
        found = collected(hr.make_vec(Reporting, 2, "sync"), {"parts/drive": how})
        assert found == {"env/parts/drive": value}
    assert collected(hr.make_vec(Reporting, 2, "sync"), ["parts/drive"])["env/parts/drive"] == 2.5
    assert collected(hr.make_vec(Reporting, 2, "sync"), {}) == {}


@pytest.mark.parametrize("in_lists", [False, True])
def test_infos_of_vector_environments(in_lists):
    make = lambda: hr.make_vec(ReportingVector, 3, env_kwargs={"in_lists": in_lists})  # noqa: E731
    assert collected(make()) == {"env/is_success": 1.0, "env/parts/drive": 4.0}
    assert collected(make(), {"parts/drive": "sum"}) == {"env/parts/drive": 10.0}


@pytest.mark.parametrize("chosen", [None, {"parts/drive": "last", "is_success": "last"}])
def test_final_info_is_that_of_the_episode_in_same_step_mode(chosen):
    envs = SyncVectorEnv([Reporting] * 2, autoreset_mode=AutoresetMode.SAME_STEP)
    found = collected(next_step(envs, "Reporting"), chosen)
    assert (found["env/parts/drive"], found["env/is_success"]) == (4.0, 1.0)
    assert "env/begun" not in found


def test_statistics_of_wrappers_are_found():
    make = lambda: gymnasium.wrappers.RecordEpisodeStatistics(Reporting())  # noqa: E731
    found = collected(hr.make_vec(make, 2, "sync"))
    assert (found["env/episode/r"], found["env/episode/l"]) == (4.0, 4.0)


class Numbered(Reporting):
    """Reports under keys that are whole numbers, as some simulators name their parts."""

    def step(self, action):
        *result, _ = super().step(action)
        return *result, {7: 1.0, "parts": {3: 2.0}}


@pytest.mark.parametrize("engine", ["sync", "threads"])
def test_keys_that_are_numbers_become_names(engine):
    found = collected(hr.make_vec(Numbered, 2, engine))
    assert found == {"env/7": 1.0, "env/parts/3": 2.0}


def test_names_that_are_found_are_bounded():
    infos = {f"x{i}": np.ones(1) for i in range(2 * MAX_NAMES)}
    metrics = InfoMetrics(1)
    metrics.note(infos, np.array([False]), np.array([True]))
    assert len(metrics.take()) == MAX_NAMES


@pytest.mark.parametrize("form", [lambda x: x, json.dumps, lambda x: None])
def test_what_is_no_number_is_left_out(form):
    infos = {"a": np.array([form("text")], object), "b": np.array([None]), "action_mask": [[1, 0]]}
    metrics = InfoMetrics(1)
    metrics.note({**infos, "c": np.array([[1.0, 2.0]])}, np.array([False]), np.array([True]))
    assert metrics.take() == {}


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"a": "median"}, "must be one of mean, last, sum, min, max"),
        ("a:men", "Did you mean .mean"),
        ("", "info_metrics"),
        ({"a b": "mean"}, "write NAME:REDUCTION"),
        (["dist", 3], r"has 3, which is not the name of a number in infos: give names, as in \["),
        ({3: "mean"}, "has 3, which is not the name"),
        ({"dist": 3}, "has 3, which is not the name"),
        (7, "has 7, which is not the name"),
        ([1], "info_metrics"),
    ],
)
def test_a_setting_that_is_none_is_refused(chosen, words):
    with pytest.raises(hr.ConfigError, match=words):
        hr.Config(info_metrics=chosen)

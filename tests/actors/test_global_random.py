"""Processes that run environments don't share draws of the global random generators."""

from __future__ import annotations

import contextlib
import random
from collections import defaultdict

import numpy as np
import pytest
import torch
from worlds.draws import GlobalDrawsEnv

import headrace as hr
from headrace.processes import global_generators_kept, seed_global_generators

GENERATORS = ("numpy", "random", "torch")


def shared(log, repeats=False) -> dict[str, int]:
    """Count, by generator, the draws in a log that any processes made more than once.

    Args:
        repeats: a process may repeat its own draws.
    """
    rows = [line.split() for line in log.read_text().splitlines()]
    assert len(rows) > 4
    found = {}
    for column, name in enumerate(GENERATORS, start=1):
        times = defaultdict(int)
        draws = [(row[0], row[column]) for row in rows]
        for _, value in set(draws) if repeats else draws:
            times[value] += 1
        found[name] = sum(count > 1 for count in times.values())
    return found


def states() -> list:
    return [random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()]


NONE = dict.fromkeys(GENERATORS, 0)


@pytest.mark.parametrize(
    "settings",
    [
        {"num_actors": 3, "envs_per_actor": 2, "transport": "shm"},
        {"num_actors": 2, "envs_per_actor": 4, "transport": "shm", "num_learners": 2},
        {"num_actors": 2, "envs_per_actor": 2, "transport": "serial"},
        {"num_actors": 1, "envs_per_actor": 3, "transport": "serial", "engine": "async"},
        {"num_actors": 2, "envs_per_actor": 2, "transport": "shm", "engine": "threads"},
        {"num_actors": 2, "envs_per_actor": 2, "transport": "shm", "eval_episodes": 3},
    ],
    ids=["shm", "learners", "serial", "async", "threads", "evaluated"],
)
def test_no_two_processes_of_a_run_draw_the_same(tiny, tmp_path, settings):
    log = tmp_path / "log"
    config = tiny(env=GlobalDrawsEnv, env_kwargs={"log": str(log)}, total_steps=512, **settings)
    hr.train(config)
    evaluates = "eval_episodes" in settings  # with likely and sampled actions, in equal episodes
    assert shared(log, repeats=evaluates) == NONE


def test_a_replaced_actor_draws_what_none_before_it_drew(tiny, tmp_path):
    log = tmp_path / "log"
    how = {"log": str(log), "fails": 5}
    config = tiny(
        env=GlobalDrawsEnv, env_kwargs=how, total_steps=1280, num_actors=2, max_restarts=5
    )
    said = []
    with contextlib.closing(hr.Trainer(config, notify=said.append)) as trainer:
        list(trainer)
    assert any("restart" in line for line in said)
    assert shared(log) == NONE


def test_workers_of_a_cluster_environment_draw_apart(tmp_path):
    log = tmp_path / "log"
    settings = {"type": GlobalDrawsEnv, "envs_per_node": 1, "env_kwargs": {"log": str(log)}}
    with hr.ClusterEnv(settings, hr.LocalConfig(nodes=3)) as envs:
        envs.reset(seed=1)
        for _ in range(12):
            envs.step(np.zeros(3, np.int64))
    assert shared(log) == NONE


@pytest.mark.parametrize("transport", ["serial", "shm"])
def test_a_deterministic_run_repeats_with_draws_of_the_global_generators(tiny, tmp_path, transport):
    weights = []
    for name in ("one", "two"):
        np.random.seed(len(weights))  # the caller's own states don't matter
        log, run_dir = str(tmp_path / name), str(tmp_path / f"run-{name}")
        how = {"env_kwargs": {"log": log}, "deterministic": True, "run_dir": run_dir}
        config = tiny(env=GlobalDrawsEnv, transport=transport, num_actors=2, **how)
        weights.append(hr.train(config).state_dict())
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])


def test_a_serial_run_and_an_evaluation_leave_the_callers_generators_as_they_were(tiny):
    before = states()
    during = []

    def note(result) -> None:
        during.append(states())

    policy = hr.train(
        tiny(env=GlobalDrawsEnv, transport="serial", eval_episodes=1), callbacks=[note]
    )
    first = hr.evaluate(policy, GlobalDrawsEnv, 2)
    assert first == hr.evaluate(policy, GlobalDrawsEnv, 2)
    assert first != hr.evaluate(policy, GlobalDrawsEnv, 2, seed=3)
    assert len(during) > 1
    assert all(one == before for one in [*during, states()])


def test_processes_of_environments_repeat_their_draws_after_a_reset_with_a_seed():
    with contextlib.closing(hr.make_vec(GlobalDrawsEnv, 2, "async")) as envs:
        first, again, other = (np.array(envs.reset(seed=seed)[0]) for seed in (5, 5, 7))
    assert np.array_equal(first, again)
    assert not np.isin(other, first).any()


def test_seeds_of_any_two_processes_differ_and_repeat():
    def drawn(*of) -> tuple:
        with global_generators_kept():
            seed_global_generators(*of)
            return random.random(), np.random.random(), torch.rand(()).item()

    several = [
        (seed, role, index, restart)
        for seed in (0, 1, 2**40, -1)
        for role in ("actor", "epoch", "evaluation")
        for index in (0, 1)
        for restart in (0, 1)
    ]
    found = {of: drawn(*of) for of in several}
    assert len(set(found.values())) == len(several)
    assert all(drawn(*of) == values for of, values in found.items())

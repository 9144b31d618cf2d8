"""The comparison of headrace and its peers with the same work: programs, rates and ratios."""

from __future__ import annotations

import importlib
import itertools

import pytest

from headrace.studies.machine import wide_console


@pytest.fixture
def study():
    return importlib.import_module("same_work")


@pytest.fixture
def work(study):
    """A small update: 256 environments, one step each and 2 epochs of one minibatch."""
    return study.Work("small", 2, 1, 256, 1)


def test_ratios_are_within_a_repeat_and_settings_the_fastest_of_several_cores(study, monkeypatch):
    asked = []

    def rate(case, seconds, settings=None):
        asked.append((case.program.name, case.work.name, len(case.cores), seconds))
        slow = (settings or case.settings).get("num_actors") == 1
        repeat = sum(one == asked[-1] for one in asked)
        return {"headrace": 600.0, "c": 1200.0}[case.program.who] / (1 + slow) * repeat

    programs = [p for p in study.PROGRAMS if p.who in ("headrace", "c")]
    monkeypatch.setattr(study, "PROGRAMS", programs)
    monkeypatch.setattr(study.ceiling_c, "compiler", lambda: "cc")
    monkeypatch.setattr(study.shutil, "which", lambda name: name)
    monkeypatch.setattr(study.os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    monkeypatch.setattr(study.Case, "rate", rate)
    rows = study.compare(3, 6.0, wide_console())
    assert [(row["program"], row["work"], row["cores"]) for row in rows] == [
        (program.name, work.name, cores)
        for work, cores, program in itertools.product(study.WORKS, (1, 2), programs)
        if work.epochs == 1 or program.name != "headrace IMPALA"
    ]
    by_case = {(row["program"], row["cores"]): row for row in rows if row["work"] == "one pass"}
    one, several = (by_case["headrace PPO", cores] for cores in (1, 2))
    assert (one["settings"], several["settings"]) == ({"num_actors": 1}, {"num_actors": 2})
    bound = by_case["plain C, one per core", 2]
    assert bound["headrace_ratio"] == 0.5
    assert (bound["sps_min"], bound["sps_max"]) == (1200.0, 3600.0)
    head, _, *lines = study.pivot(rows).splitlines()
    assert head.startswith("| program | one pass, cores: 1 | one pass, cores: 2 | 4 epochs")
    assert lines == [
        "| plain C, one per core | 2,400 | 2,400 | 2,400 | 2,400 |",
        "| headrace PPO | 600 | 1,200 | 600 | 1,200 |",
        "| headrace IMPALA | 600 | 1,200 |  |  |",
    ]


def test_a_missing_package_is_named_with_the_command_that_installs_it(study):
    program = study.Program("x", "jax", needs=("json", "no_such_package"))
    assert program.missing() == (
        "no_such_package missing. Try pip install -r benchmarks/same_work.txt"
    )


def test_a_missing_compiler_is_reported(study, monkeypatch):
    monkeypatch.setenv("CC", "no-such-compiler")
    (bound,) = [p for p in study.PROGRAMS if p.who == "c"]
    assert bound.missing() == "no C compiler was found. Install gcc or set CC."


@pytest.mark.parametrize("algo", ["ppo", "impala"])
def test_headrace_has_a_rate(work, algo):
    loops = importlib.import_module("same_work_loops")
    assert loops.headrace_rate(work, 0.0, algo, num_actors=1) > 0


def test_stable_baselines_has_a_rate(work):
    pytest.importorskip("stable_baselines3")
    assert importlib.import_module("same_work_loops").sb3_rate(work, 0.0, threads=1) > 0


def test_the_single_file_trains_on_transitions_without_reset_steps():
    import gymnasium
    import torch

    loops, ppo = (importlib.import_module(name) for name in ("same_work_loops", "learning_ppo"))
    torch.manual_seed(0)
    envs = gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point")
    agent, obs = ppo.Agent(4, 2, False), torch.from_numpy(envs.reset(seed=0)[0])
    start = obs, torch.zeros(3)
    batch, _, first = loops.collect(agent, ppo.DISCRETE, envs, 60, *start)
    assert 3 <= 3 * 60 - len(batch["obs"]) <= 3 * 8  # episodes of about 20 steps
    assert set(first.tolist()) <= {0.0, 1.0}
    angle = batch["obs"][:, 2].abs()
    assert angle.max() < 0.2095  # no sample begins in the last observation of an episode
    assert batch["target"].min() > 0.5  # a reset step would have a reward of 0
    ppo.descend(agent, torch.optim.Adam(agent.parameters()), ppo.DISCRETE, batch)


@pytest.mark.slow
def test_the_c_program_learns(study, tmp_path):
    bound = importlib.import_module("ceiling_c")
    if bound.compiler() is None:
        pytest.skip("no C compiler")
    work = study.Work("", 4, 4, 256, 32)
    lengths = [bound.rate(work, 0.0, [], updates)["episode_length"] for updates in (2, 30)]
    assert lengths[0] < 40
    assert lengths[1] > 80


def test_the_jax_program_learns(study):
    pytest.importorskip("gymnax")
    pytest.importorskip("optax")
    jax = importlib.import_module("same_work_jax")
    result = jax.rate(study.Work("", 4, 4, 256, 32), 0.0, least_calls=10)
    assert result["episode_length"] > 60

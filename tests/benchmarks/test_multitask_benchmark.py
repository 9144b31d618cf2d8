"""multitask.py: its runs, and the scores of their returns."""

from __future__ import annotations

import importlib

import pytest
from gymnasium.envs.registration import registry
from rich.console import Console


@pytest.fixture
def multitask():
    known = dict(registry)
    yield importlib.import_module("multitask")
    for name in registry.keys() - known.keys():  # which no other process could make
        del registry[name]


def test_experts_and_agents_have_the_same_steps_of_each_task(multitask):
    args = multitask.Args(seeds=2, task_steps=1000)
    cases = multitask.cases_of(args)
    assert len(cases) == 2 * (4 + 3)
    configs = [multitask.config_of(args, case["who"], case["seed"]) for case in cases]
    assert {c.total_steps / len(c.tasks) for c in configs} == {1000}
    assert {c.envs_per_actor * c.num_actors / len(c.tasks) for c in configs} == {16}
    assert len({c.run_dir for c in configs}) == len(configs)
    told = {case["who"]: c.network for case, c in zip(cases, configs, strict=True)}
    assert not told["blind"].task_id
    assert told["told"].task_id
    assert told["values"].per_task_values


def test_seeds_begin_where_they_are_told_to(multitask):
    args = multitask.Args(seeds=2, first_seed=7)
    assert {case["seed"] for case in multitask.cases_of(args)} == {7, 8}
    dirs = {multitask.config_of(one, "blind", 7).run_dir for one in (args, multitask.Args())}
    assert len(dirs) == 1  # the same run, whichever are the others


def test_a_suite_by_its_name_and_its_network(multitask):
    args = multitask.Args(tasks=("levels-10",), algo="impala", lstm=256, agents=("blind",), seeds=1)
    cases = multitask.cases_of(args)
    assert len(cases) == 10 + 1
    expert, agent = (multitask.config_of(args, cases[i]["who"], 0) for i in (0, -1))
    assert (len(expert.tasks), len(agent.tasks)) == (1, 10)
    assert agent.algo == multitask.hr.IMPALA()
    assert (agent.network.core, agent.network.core_size) == ("lstm", 256)
    assert agent.total_steps == 10 * expert.total_steps


def test_a_picture_shows_scores(multitask, tmp_path):
    known = {"score": 0.5, "score_se": float("nan")}
    table = [{"task": "A", "who": "expert", **known}, {"task": "A", "who": "told", **known}]
    missing = {"task": "B", "who": "told", "score": None, "score_se": None}
    multitask.draw([*table, missing], tmp_path / "scores.png")
    assert (tmp_path / "scores.png").stat().st_size > 1000


def test_a_score_is_0_for_random_actions_and_1_for_the_mean_of_the_experts(multitask):
    rows = [
        {"who": who, "task": "A-v0", "mean": mean}
        for who, mean in (("expert A-v0", 90.0), ("expert A-v0", 110.0), ("told", 70.0))
    ]
    expert, told = multitask.scored(rows, {"A-v0": 40.0})
    assert (expert["return"], expert["score"], expert["seeds"]) == (100.0, 1.0, 2)
    assert (told["return"], told["score"]) == (70.0, 0.5)
    assert {row["score"] for row in multitask.scored(rows, {"A-v0": 200.0})} == {None}


def test_random_actions_are_whole_episodes(multitask):
    assert multitask.random_return("MountainCar-v0", 2) == -200.0
    assert multitask.random_return("multitask_envs:PendulumOfFive-v0", 1) < 0


def test_runs_are_compared_over_tasks_and_seeds(multitask):
    rows = [
        {"who": who, "task": task, "mean": mean}
        for who, task, mean in (
            ("expert A", "A", 90.0), ("expert A", "A", 110.0), ("expert B", "B", 10.0),
            ("expert B", "B", 10.0), ("told", "A", 200.0), ("told", "A", 50.0),
            ("told", "B", 5.0), ("told", "B", 5.0), ("expert C", "C", 0.0), ("told", "C", 0.0),
        )
    ]  # fmt: skip
    table = multitask.scored(rows, {"A": 0.0, "B": 0.0, "C": 1.0})
    console = Console(record=True, width=160)
    multitask.compare(rows, table, console)
    told = next(line for line in console.export_text().splitlines() if "told" in line)
    assert "0.50 (" in told  # the middle two of 1 (capped), 0.5, 0.5 and 0.5
    assert "0.25 (" in told  # of 4 pairs of A it wins 2; it never wins in B
    console = Console(record=True, width=160)
    multitask.compare([row for row in rows if row["mean"] < 100], table, console)
    assert not console.export_text()  # seeds are missing


def test_a_run_that_was_interrupted_is_a_sentence(multitask, monkeypatch, tmp_path):
    class Interrupted:
        def __init__(self, config, notify):
            self.finish = dict

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def __iter__(self):
            return iter(())

    monkeypatch.setattr(multitask.hr, "Trainer", Interrupted)
    args = multitask.Args(output=tmp_path, agents=("blind",), seeds=1)
    with pytest.raises(SystemExit, match=r"blind, seed 0: the run was not evaluated.*repeat"):
        multitask.measure(args, multitask.cases_of(args)[-1])

"""The benchmark that compares plans with runs: rows of its table."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


@pytest.fixture
def validation(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("plan_validation")


def row(error, others):
    return {"case": "a", "error": error, "planned_lag": 1.0, "others_cores": others, "costs": ""}


def test_only_quiet_rounds_count_where_there_are_any(validation):
    rows = [row(0.9, 1.5), row(0.1, 0.1), row(-0.2, 0.0), row(0.05, 0.2)]
    (found,) = validation.table(rows)
    assert found["quiet rounds"] == "3 of 4"
    assert found["error"] == pytest.approx(0.05)
    assert found["worst_error"] == -0.2
    (loud,) = validation.table(rows[:1])
    assert (loud["error"], loud["quiet rounds"]) == (0.9, "0 of 1")


def test_the_cases_are_at_least_six_of_both_kinds_and_can_be_built(validation):
    configs = [case.config() for case in validation.CASES]
    assert len({case.name for case in validation.CASES}) == len(configs) >= 6
    assert {config.algo.max_lag == 0 for config in configs} == {True, False}
    assert {1, 2, 4} <= {config.num_actors for config in configs}


def test_a_straggler_is_the_first_actor_and_nobody_else(validation, monkeypatch):
    import multiprocessing

    assert validation.Steady(0.01, straggler=True)._sleep_s == 0.01
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "headrace-actor-0")
    assert validation.Steady(0.01, straggler=True)._sleep_s == 0.04
    assert validation.Steady(0.01)._sleep_s == 0.01

"""benchmarks/book/lesson.py: cases, verdicts on made-up runs, and the checks of formulas."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest


@pytest.fixture
def book(benchmark):
    """The modules of the page, by the end of their name."""
    names = ("lesson", "lesson_formulas", "lesson_judges", "experiment", "rows")
    return {name: benchmark(f"book.{name}") for name in names}


def verdict(book, where, *runs):
    """Return the verdict of a row on pairs of a case and values."""
    (row,) = [row for row in book["lesson"].PAGE.rows if row.where == where]
    made = book["rows"].Runs(tuple(book["rows"].Run(*run) for run in runs))
    return row.judge({row.experiments[0]: made}).verdict.value


@pytest.mark.parametrize(("share", "expected"), [(0.97, "reproduced"), (0.7, "not reproduced")])
def test_speeds_are_compared_with_the_ceiling(book, share, expected):
    sizes = {"actors": 32, "envs": 16, "step_ms": 20, "learners": 1}
    values = {"sps": share * 25_600, "share": share}
    assert verdict(book, "Python games", (sizes, values)) == expected
    case = {"what": "training", "one_is_slow": True}
    assert verdict(book, "Slow actor", (case, values)) == expected


@pytest.mark.parametrize(("appo", "expected"), [(0.9, "in kind"), (0.2, "refuted")])
def test_a_slow_actor_costs_the_share_that_runs_lose(book, appo, expected):
    runs = [
        ({"algo": algo, "actors": actors, "one_is_slow": actors == 8}, {"sps": sps})
        for algo, kept in 2 * (("ppo", 0.3), ("appo", appo))
        for actors, sps in ((1, 100.0), (8, kept * 100.0))
    ]
    assert verdict(book, "Straggler problem", *runs) == expected


def test_the_example_may_climb_without_preferring_priorities(book):
    values = {"random_return": 38.0, "final_return": 80.0, "picks_best": 0.2, "share_of_best": 0.9}
    runs = [({"variant": v}, values) for v in 2 * ("literal", "tuned")]
    assert verdict(book, "Example, start", *runs) == "refuted"
    assert verdict(book, "Example, return", *runs) == "reproduced"
    assert verdict(book, "Example, priorities", *runs) == "not reproduced"


def test_formulas_agree_with_the_lesson_and_biases_have_the_expected_order(book, monkeypatch):
    formulas = book["lesson_formulas"]
    monkeypatch.setattr(formulas, "COLUMNS", 500)
    monkeypatch.setattr(formulas, "SWEEPS", 30)
    found = formulas.formulas({"seed": 0})
    assert max(found["error"], found["error_n_step"]) < 1e-4
    assert found["bias_uncorrected"] < found["bias_vtrace"] < 0 < found["gap"]
    assert (found["batch_1"], found["batch_2"]) == (4800, 9600)


def test_one_environment_becomes_slow_and_none_of_a_short_probe(book, tmp_path):
    waiting, slept = sys.modules["waiting"], []
    waiting.time = SimpleNamespace(sleep=slept.append)
    probe, first, second = (waiting.Wait(0.1, f"{tmp_path}/claim") for _ in range(3))
    for wait, steps in ((probe, 5), (first, 30), (second, 30)):
        for _ in range(steps):
            wait()
    assert slept == [0.1] * (5 + 19) + [1.0] * 11 + [0.1] * 30

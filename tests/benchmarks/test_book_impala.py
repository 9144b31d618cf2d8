"""The page impala of the results book: cases, judgements, and forced lag."""

from __future__ import annotations

import importlib

import numpy as np
import pytest


@pytest.fixture
def book(importable):
    return importlib.import_module("book.impala")


def runs_of(book, **lines):
    rows = importlib.import_module("book.rows")
    return {
        name: rows.Runs(tuple(rows.Run(case, values) for case, values in each))
        for name, each in lines.items()
    }


@pytest.mark.parametrize(
    ("impala", "a3c", "verdict"),
    [((0.9, 0.8, 0.85), (0.3, 0.2, 0.25), "in kind"), ((0.3, 0.2), (0.8, 0.9), "refuted"),
     ((0.1, 0.9), (0.8, 0.2), "not reproduced")],
    ids=["better", "worse", "equal"],
)  # fmt: skip
def test_the_single_tasks_are_judged_by_best_and_by_all_settings(book, impala, a3c, verdict):
    lines = [
        ({"task": task, "seed": seed}, {"impala": x, "a3c": y})
        for task in ("one", "two")
        for seed, (x, y) in enumerate(zip(impala, a3c, strict=True))
    ]
    data = runs_of(book, impala_single=lines)
    assert book.final_best("impala", ("a3c",))(data).verdict.value == verdict
    assert book.stability(data).verdict.value == verdict


@pytest.mark.parametrize("best", ["vtrace", "none"])
def test_a_correction_is_compared_with_the_best_of_the_others(book, best):
    values = {"vtrace": 0.5, "one_step": 0.1, "epsilon": 0.1, "none": 0.4} | {best: 0.9}
    lines = [({"task": "one", "replay": 0.5, "seed": n}, values) for n in range(3)]
    judged = book.correction(0.5, ("one_step", "epsilon", "none"))(
        runs_of(book, impala_corrections=lines)
    )
    assert judged.verdict.value == ("in kind" if best == "vtrace" else "refuted")


@pytest.mark.parametrize(("error", "verdict"), [(1e-12, "reproduced"), (1e-3, "refuted")])
def test_properties_are_judged_by_rounding(book, error, verdict):
    lines = [({"seed": 0}, {"bellman_error": error})]
    judge = book.below(1e-9, "bellman_error")
    assert judge(runs_of(book, impala_vtrace=lines)).verdict.value == verdict


def test_headrace_computes_the_papers_targets(book):
    theory = importlib.import_module("book.impala_theory")
    problem = theory.Problem(7)
    found = theory.exact(problem) | theory.contraction(problem)
    errors = ("bellman_error", "definition_error", "td_lambda_error", "fixed_point_error")
    assert max(found[name] for name in errors) < 1e-9
    assert found["modulus_excess"] < 0
    assert np.allclose(problem.between(theory.FAR), problem.pi)


def test_gradients_of_a3c_are_as_late_as_the_other_actors_make_them(book, monkeypatch):
    from headrace.actors import actor

    runs = importlib.import_module("book.impala_runs")
    monkeypatch.setattr(actor, "ActorLearner", runs.LateActorLearner)
    case = {"task": "CartPole-v1", "steps": 1000, "seed": 1, **runs.drawn(1)}
    found = runs.trained(runs.single_config(case, "a3c"))
    assert 1 < found["lag_mean"] < runs.NUM_ACTORS

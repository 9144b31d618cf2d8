"""benchmarks/book/peers.py: cases and verdicts on made-up runs, without training."""

from __future__ import annotations

import pytest


@pytest.fixture
def book(benchmark):
    """The modules of the page, by the end of their name."""
    return {name: benchmark(f"book.{name}") for name in ("peers", "experiment", "rows")}


def test_quick_runs_take_12_or_20_seconds(book):
    peers = book["peers"]
    cases = peers.SUITE.cases(book["experiment"].Form("quick"))
    seconds = {case["task"]: round(peers.scaled(case).seconds) for case in cases}
    assert seconds == {"CartPole-v1": 12, "LunarLander-v3": 20, "Pendulum-v1": 12, "Acrobot-v1": 12}


def judged(book, where, *runs):
    """Return the judgement of a row on pairs of a case and values."""
    (row,) = [row for row in book["peers"].PAGE.rows if row.where == where]
    made = book["rows"].Runs(tuple(book["rows"].Run(*run) for run in runs))
    return row.judge({row.experiments[0]: made})


@pytest.mark.parametrize(("own", "expected"), [(1.0, "in kind"), (-0.5, "refuted")])
def test_programs_are_compared_on_each_task_and_over_all(book, own, expected):
    runs = [
        ({"task": task, "algo": algo, "seed": seed},
         {"training_return": value, "score": value, "sps": 10 * (value + 1)})
        for seed in (0, 1)
        for task in ("CartPole-v1", "Acrobot-v1", "Pendulum-v1", "LunarLander-v3")
        for algo, value in (("appo", own), ("sb3", 0.0))
    ]  # fmt: skip
    assert judged(book, "CartPole, APPO", *runs).verdict.value == expected
    assert judged(book, "All tasks, APPO", *runs).verdict.value == expected
    speed = judged(book, "Speed, APPO", *runs)
    assert speed.result == f"{own + 1:.1f} to {own + 1:.1f} times SB3's steps/s"
    assert speed.verdict.value == ("in kind" if own > 0 else "not reproduced")


def test_misses_count_as_the_limit(book):
    runs = [
        ({"algo": algo, "seed": seed}, {"seconds": seconds, "reached": seconds < 60})
        for seed in (0, 1)
        for algo, seconds in (("appo", 3.0), ("sb3", 60.0))
    ]
    found = judged(book, "CartPole to 475, APPO", *runs)
    assert found.verdict.value == "in kind"
    assert found.result == "APPO 3.00 ± 0.00 s, SB3 60.0 ± 0.0 s (2 of 2 missed)"


@pytest.mark.parametrize(("least", "expected"), [(91.0, "in kind"), (60.0, "not reproduced")])
def test_every_seed_must_solve_mountain_car(book, least, expected):
    runs = [({"algo": "appo"}, {"evaluated": value}) for value in (93.0, least)]
    assert judged(book, "MountainCarContinuous, APPO", *runs).verdict.value == expected

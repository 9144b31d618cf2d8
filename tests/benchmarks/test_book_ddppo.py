"""benchmarks/book/ddppo.py: cases, verdicts on stand-in runs, and equal steps of two learners."""

from __future__ import annotations

import pytest


@pytest.fixture
def book(benchmark):
    """The modules of the page, by the end of their name."""
    names = ("ddppo", "ddppo_judges", "ddppo_runs", "experiment", "rows")
    return {name: benchmark(f"book.{name}") for name in names}


def test_the_papers_batches(book):
    configs = {
        (case["batch"], case["world_size"]): book["ddppo"]._speed_config(case)
        for case in book["ddppo"]._speeds(book["experiment"].Form("quick"))
        if case["size"] == "small"
    }
    sizes = {key: one.resolved_batch_size for key, one in configs.items()}
    assert sizes == {
        ("constant", 1): 512, ("constant", 2): 512, ("constant", 4): 512,
        ("growing", 2): 1024, ("growing", 4): 2048,
    }  # fmt: skip
    assert all(one.total_steps == 25 * sizes[key] for key, one in configs.items())


def speeds(book, by_learners):
    """Return three runs with these steps per second of the small batch."""
    run = book["rows"].Run
    return {
        "ddppo_speed": book["rows"].Runs(
            tuple(
                run(
                    {"size": "small", "batch": batch, "world_size": size, "seed": seed},
                    {"fps": fps + seed, "t_iter": 512 / fps, "rho_comm": 0.1 * size}
                    | {"rho_sync": 0.05 * size, "t_comm": 0.2, "t_sync": 0.1},
                )
                for (batch, size), fps in by_learners.items()
                for seed in range(3)
            )
        )
    }


@pytest.mark.parametrize(
    ("fps", "expected"), [((100, 80, 40), "reproduced"), ((100, 150, 180), "refuted")]
)
def test_the_papers_slowdown_is_judged_by_the_speed_ups(book, fps, expected):
    keys = (("constant", size) for size in (1, 2, 4))
    data = speeds(book, dict(zip(keys, fps, strict=True)))
    assert book["ddppo_judges"].papers_table(data).verdict.value == expected
    assert book["ddppo_judges"].overheads(data).verdict.value == "reproduced"
    assert book["ddppo_judges"].small_waits(data).verdict.value == "refuted"


def test_returns_may_be_five_percent_lower(book):
    for last, expected in ((480, "reproduced"), (400, "not reproduced")):
        returns = {(1, "constant"): 500, (2, "constant"): 490, (2, "growing"): 500}
        runs = [
            book["rows"].Run({"world_size": w, "batch": b, "seed": s}, {"final_return": x + s})
            for (w, b), x in {**returns, (4, "constant"): last}.items()
            for s in range(2)
        ]
        data = {"ddppo_target": book["rows"].Runs(tuple(runs))}
        assert book["ddppo_judges"].final_returns(data).verdict.value == expected


def test_one_learner_takes_equal_steps_with_equal_seeds_only(book):
    one, same, other = (book["ddppo_runs"]._steps(None, 0, 1, seed) for seed in (3, 3, 4))
    assert (one["weights"] == same["weights"]).all()
    assert (one["gradient"] != other["gradient"]).any()

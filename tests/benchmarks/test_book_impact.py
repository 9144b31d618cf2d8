"""benchmarks/book/impact.py: cases, verdicts on stand-in runs, and the checks without training."""

from __future__ import annotations

import pytest


@pytest.fixture
def book(benchmark):
    """The modules of the page, by the end of their name."""
    names = ("impact", "impact_checks", "impact_judges", "experiment", "rows")
    return {name: benchmark(f"book.{name}") for name in names}


def runs(book, variants, **case):
    """Return three runs of each variant that reach a return; their speed is steps per second."""
    made = []
    for variant, (final, speed) in variants.items():
        for seed in range(3):
            top, seconds = final + seed, 100 / speed
            points = [[s, 2 + s / speed, top * s / 100] for s in range(0, 101, 10)]
            values = {"final_return": top, "area": top / 2, "peak_return": top + 10 / speed}
            values |= {"seconds": seconds, "seconds_total": seconds + 9, "curve": points}
            made.append(book["rows"].Run({"variant": variant, **case, "seed": seed}, values))
    return book["rows"].Runs(tuple(made))


def verdict(judge, experiment, found):
    return judge({experiment: found}).verdict.value


def test_verdicts_follow_from_the_runs(book):
    judges = book["impact_judges"]
    better = runs(book, {"R3": (200, 1), "R1": (100, 5), "R2": (50, 1)})
    judge = judges.higher("x", "final_return", "R3", "R1", "R2")
    assert verdict(judge, "x", better) == "in kind"
    assert verdict(judges.higher("x", "final_return", "R2", "R3"), "x", better) == "refuted"
    assert verdict(judges.unstable("x", "R3", "R2"), "x", better) == "not reproduced"
    same = {"IMPACT": (100, 1), "NK/4": (100, 1), "4 NK": (101, 1), "16 NK": (20, 1)}
    for last, expected in ((98, "in kind"), (20, "refuted")):  # long periods aren't judged
        found = runs(book, {**same, "NK/16": (last, 1)})
        assert verdict(judges.target_periods, "impact_targets", found) == expected


def test_time_counts_from_the_first_update_until_the_fastest_run_ends(book):
    judges = book["impact_judges"]
    found = runs(book, {"IMPACT": (100, 4), "PPO": (100, 1), "IMPALA": (80, 4)}, env="CartPole-v1")
    at = judges.equal_time(found.where(seed=0), "variant")  # after 25 seconds
    assert at == {"IMPACT": [100.0], "PPO": [25.0], "IMPALA": [80.0]}
    for other in ("PPO", "IMPALA"):
        judge = judges.in_time("impact_compared", "CartPole-v1", other)
        assert verdict(judge, "impact_compared", found) == "in kind"
    assert verdict(judges.wall_time, "impact_compared", found) == "in kind"


def test_a_task_of_several_is_judged_by_its_own_runs(book):
    judges = book["impact_judges"]
    good = runs(book, {"IMPACT": (100, 4), "PPO": (50, 4)}, env="Hopper-v5")
    bad = runs(book, {"IMPACT": (50, 4), "PPO": (100, 4)}, env="Humanoid-v5")
    found = book["rows"].Runs((*good, *bad))
    for env, expected in (("Hopper-v5", "in kind"), ("Humanoid-v5", "refuted")):
        in_time = judges.in_time("x", env, "PPO")
        in_steps = judges.in_steps("x", "IMPACT", "PPO", env)
        assert verdict(in_time, "x", found) == verdict(in_steps, "x", found) == expected


def test_clipped_ratio_is_below_ppos_only_with_rho_1(book):
    found = book["impact_checks"].likelihood_ratios({"policies": 50, "seed": 3})
    assert (found["above_ppo_rho_1"], found["above_rho"], found["differs_on_policy"]) == (0, 0, 0)
    assert found["above_ppo"] > 0.9


def test_a_setting_that_differs_from_a_table_is_counted(book, monkeypatch):
    checks = book["impact_checks"]
    case = {"task": "Hopper"}
    assert checks.compare_with_table(case) == {"settings": 45, "differing": 0}
    monkeypatch.setitem(checks.TABLES, "Hopper", (*checks.TABLES["Hopper"][:2], checks.TABLE_1))
    assert checks.compare_with_table(case)["differing"] > 20

"""Random faults, settings and damage are reproducible, and their results are checked correctly."""

from __future__ import annotations

import sys

import pytest


def test_the_same_number_draws_the_same_fault(benchmark):
    faults = benchmark("faults")
    drawn = [faults.drawn(3, number, faults.BACKENDS) for number in range(200)]
    assert drawn == [faults.drawn(3, number, faults.BACKENDS) for number in range(200)]
    assert {one.backend for one in drawn} == set(faults.BACKENDS)
    assert {one.phase for one in drawn} == set(faults.PHASES)
    assert {one.name for one in drawn} == {*faults.OUTSIDE, *faults.INSIDE}


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda: 0, None),
        (lambda: print("headrace: bad value") or 2, None),
        (lambda: print("bad value") or 2, "exit status 2 without a message"),
        (lambda: sys.exit("headrace: bad value"), None),
        (lambda: 1 // 0, "prints a traceback"),
        (lambda: sys.modules["time"].sleep(60), "hangs"),
    ],
    ids=["good", "sentence", "words", "exit", "traceback", "hang"],
)
def test_ends_are_judged(function, problem, benchmark):
    assert benchmark("fuzz_trials").ended(function, 1.0).problem == problem


def test_trials_draw_many_settings(benchmark):
    configs = benchmark("fuzz_configs")
    rng = configs.random.Random(0)
    drawn = [configs.drawn(rng)[2] for _ in range(300)]
    assert len({name for one in drawn for name in one}) > 60


def test_every_damage_changes_a_file(benchmark, tmp_path):
    runs = benchmark("fuzz_runs")
    for name, damage in runs.DAMAGES.items():
        file = tmp_path / f"{name}.json"
        file.write_text('{"a": [1, 2, {"b": "c"}], "d": 4.0}')
        (tmp_path / "other.json").write_text("3")
        before = file.lstat()
        damage(file, tmp_path, runs.random.Random(1))
        after = file.lstat() if file.is_symlink() or file.exists() else None
        assert after is None or (after.st_mtime_ns, after.st_mode) != (
            before.st_mtime_ns,
            before.st_mode,
        )

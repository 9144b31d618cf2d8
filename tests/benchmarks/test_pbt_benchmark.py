"""benchmarks/pbt.py: its task, the equal start of both arms, and a small comparison."""

from __future__ import annotations

import importlib
import statistics
import sys
from pathlib import Path

import numpy as np
import pytest

from headrace.studies.machine import wide_console

ROOT = Path(__file__).parents[2]


@pytest.fixture
def benchmark():
    yield importlib.import_module("pbt")
    for name in ("pbt", "pbt_env"):
        sys.modules.pop(name, None)


def played(env, miss, episodes=20):
    """Return the mean reward of a step that misses the target by this distance."""
    rewards = []
    for seed in range(episodes):
        env.reset(seed=seed)
        over = False
        while not over:
            _, reward, _, over, _ = env.step([env.targets[env.context] + miss])
            rewards.append(reward)
    return statistics.fmean(rewards), statistics.stdev(rewards)


def test_the_task_has_a_broad_and_a_narrow_hill_beneath_noise(benchmark):
    silent = benchmark.Aim(noise=0.0)
    assert played(silent, 0.0)[0] == 1.0
    assert played(silent, 0.45)[0] == pytest.approx(0.5 * np.exp(-0.10125), abs=0.01)
    assert played(silent, 2.0)[0] == pytest.approx(0.5 * np.exp(-2.0), abs=1e-6)
    mean, deviation = played(benchmark.Aim(), 0.0, 60)
    assert 0.9 < mean < 1.1
    assert 0.95 < deviation < 1.05


def test_both_arms_train_the_same_members(benchmark):
    args = benchmark.Args()
    own, other = (benchmark.population_of(args, arm, 3) for arm in benchmark.ARMS)
    assert [own.drawn(i) for i in range(6)] == [other.drawn(i) for i in range(6)]
    assert own.config == other.config
    assert own.turn_steps == other.turn_steps
    hyper, rng = own.drawn(0), np.random.default_rng(0)
    assert other.perturbed(hyper, rng) == hyper
    assert own.lead < 1 < other.lead


def test_a_population_that_always_wins_beats_the_sweep_with_probability_1(benchmark):
    score = {"population": 0.8, "sweep": 0.6}
    rows = [
        {"arm": arm, "seed": seed, "best": at + 0.01 * seed, "mean": 0.5}
        for arm, at in score.items()
        for seed in range(5)
    ]
    table = [{}, {}]
    lines = benchmark.add_statistics(table, rows, list(range(5)), ("best", "mean"))
    found = [row["best, interquartile mean (95%)"].partition(" ")[0] for row in table]
    assert found == ["0.82", "0.62"]
    assert [line.rpartition(": ")[2] for line in lines] == ["1.00 (1.00–1.00)", "0.50 (0.50–0.50)"]
    assert benchmark.add_statistics([{}, {}], rows, [0], ("best",)) == []  # has no interval


@pytest.mark.slow
def test_a_whole_small_comparison(benchmark, tmp_path, capsys):
    args = benchmark.Args(populations=2, members=2, turns=2, turn_steps=256, output=tmp_path)
    assert benchmark.main(args, wide_console()) == 0
    out = capsys.readouterr().out
    assert "of 2 populations" in out
    assert "best of the population minus best of the sweep" in out
    assert (tmp_path / "pbt.png").exists()
    assert (tmp_path / "runs" / "population-0" / "population.png").exists()
    count = len((tmp_path / "runs.csv").read_text().splitlines())
    assert count == 5
    assert benchmark.main(args, wide_console()) == 0  # nothing is done again
    assert len((tmp_path / "runs.csv").read_text().splitlines()) == count

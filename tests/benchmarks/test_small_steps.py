"""The benchmark of small optimiser steps, with tiny settings."""

from __future__ import annotations

import importlib

import pytest


@pytest.mark.full
def test_it_prints_the_fixed_cost_and_the_rates_of_both_ways(monkeypatch, capsys):
    benchmark = importlib.import_module("small_steps")
    monkeypatch.setattr(benchmark, "SIZES", (16, 32))
    monkeypatch.setattr(benchmark, "SPLITS", ((1, 1), (2, 3)))
    benchmark.main(["--seconds", "0.01", "--batch-size", "128", "--hidden", "8", "8"])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["fused", "autograd"]
    rates = [line.split() for line in lines[5:]]
    assert len(rates) == 2 * 2 * 2
    assert all(float(row[-1]) == 1.0 for row in rates if row[2:5] == ["1", "x", "1"])
    assert all(float(row[-1]) > 0 for row in rates)

"""Plots of the tuning guide: each is on its page, and drawn by its program."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def benchmark():
    """benchmarks/pathologies.py."""
    spec = importlib.util.spec_from_file_location("pathologies", ROOT / "benchmarks/pathologies.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["pathologies"] = module  # where its environments are looked for
    spec.loader.exec_module(module)
    yield module
    del sys.modules["pathologies"]


def test_every_pathology_is_on_the_page_with_its_picture(benchmark):
    page = (ROOT / "docs/pathologies.md").read_text(encoding="utf-8")
    for name in benchmark.CASES:
        assert page.count(f"](pathologies/{name}.png)") == 1, name
        assert (ROOT / f"docs/pathologies/{name}.png").exists()


def test_a_case_is_trained_well_and_ill_and_drawn(benchmark, monkeypatch, tmp_path, capsys):
    case = benchmark.CASES["horizon"]
    short = {"transport": "serial", "total_steps": 1024, "learner_threads": 1}
    monkeypatch.setitem(benchmark.CASES, "horizon", case._replace(common=case.common | short))
    benchmark.main(benchmark.Args(seeds=1, cases=("horizon",), output=tmp_path))
    assert (tmp_path / "horizon.png").stat().st_size > 5000
    told = capsys.readouterr().out
    assert "gamma=0.99: [0." in told
    assert "gamma=0.9: [0." in told

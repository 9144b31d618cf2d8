"""The benchmark of a learner alone, with few environments."""

from __future__ import annotations

import importlib
import json
import sys

import pytest

from headrace.errors import ConfigError


@pytest.mark.full
def test_a_learner_alone_is_measured_by_network_precision_and_batch(monkeypatch, tmp_path, capsys):
    learner = importlib.import_module("learner")
    monkeypatch.setattr(learner, "COLUMNS", 2)
    monkeypatch.setattr(learner, "ROLLOUTS", 1)
    flags = "--networks impala_shallow+lstm --precisions float32 --batch-sizes 40 120 --seconds 0"
    monkeypatch.setattr(sys, "argv", ["learner.py", *flags.split(), "--output", str(tmp_path)])
    learner.main()
    rows = json.loads((tmp_path / "learner.json").read_text())["rows"]
    assert [(row["network"], row["batch"]) for row in rows] == [
        ("impala_shallow+lstm", n) for n in (40, 120)
    ]
    for row in rows:
        assert row["frames"] == 4 * row["copied"]
        assert abs(row["paper"] - row["frames"] / 250_000) < 0.006
        assert abs(row["update_ms"] - 1e3 * row["batch"] / row["steps"]) < 0.1
    table = (tmp_path / "report.md").read_text()
    assert table.count("| impala_shallow+lstm | float32 |") == 2
    assert f"results: {tmp_path}" in capsys.readouterr().out


def test_a_batch_that_is_no_number_of_rollouts_is_refused():
    learner = importlib.import_module("learner")
    with pytest.raises(ConfigError, match=r"batch_sizes=1000 must .* \(nearest: 1280\)"):
        learner.Args(batch_sizes=(640, 1000))

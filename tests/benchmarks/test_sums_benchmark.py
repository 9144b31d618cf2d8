"""The prediction of benchmarks/sums.py: by a study's model, with the costs between hosts."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest

from headrace.studies.scaling.model import Cost, Link, Model, sum_s
from tests.benchmarks.test_benchmarks import BENCHMARKS

BETWEEN = Cost(400e-6, 1e-9)
MODEL = Model(
    mode="growing-batch", messages=(30_000,) * 8, rows=(512,), rollout=(0.05, 0.0),
    learn=(0.03, 0.0), memory=Cost(), sockets=Cost(9.0, 9.0), largest=2, own_comm_s=0.0,
    sync_s=0.0, other_s=0.0, steps=1000.0, link=Link(), notes=(),
)  # fmt: skip


@pytest.fixture
def sums(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return importlib.import_module("sums")


def test_a_prediction_takes_the_cost_between_hosts_in_place_of_the_studys_own(sums, tmp_path):
    fitted = dataclasses.asdict(MODEL)
    fitted["link"]["bytes_per_s"] = None  # as a study writes it
    measured = [{"world_size": 1, "fps": 12_500.0}]
    text = json.dumps({"model": fitted, "measured": measured})
    (tmp_path / "model.json").write_text(text)
    rows = {row["learners"]: row for row in sums.predicted(tmp_path, BETWEEN)}
    assert rows["1"]["speed-up"] == "1.0"
    comm_s = dataclasses.replace(MODEL, sockets=BETWEEN).at(128)["t_comm"]
    assert rows["128"]["comm, ms"] == f"{comm_s * 1e3:.2f}"
    assert rows["128"]["speed-up"] == f"{128 * 0.08 / (0.08 + comm_s):.1f}"
    (row,) = (r for r in sums.predicted(tmp_path, BETWEEN, 4.0, 8) if r["learners"] == "128")
    fewer_s = dataclasses.replace(MODEL, sockets=BETWEEN, largest=8).at(128)["t_comm"]
    assert fewer_s < comm_s
    assert row["speed-up"] == f"{128 * 0.32 / (0.32 + fewer_s):.1f}"


def test_the_cost_between_hosts_is_that_of_as_many_as_there_are_cores(sums, monkeypatch):
    monkeypatch.setattr(sums, "num_cores", lambda: 2)
    found = {
        hosts: {"headrace": {str(n): slower * sum_s("sockets", hosts, n, BETWEEN) for n in sizes}}
        for hosts, slower, sizes in ((2, 1.0, (64, 1 << 20)), (4, 9.0, (64, 1 << 20)))
    }
    assert dataclasses.astuple(sums.cost_of(found)) == pytest.approx((400e-6, 1e-9))
    del found[2]
    assert sums.cost_of(found) is None

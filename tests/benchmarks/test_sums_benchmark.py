"""Predictions of benchmarks/sums.py from a study's model and the costs between hosts."""

from __future__ import annotations

import dataclasses
import importlib
import json

import pytest

from headrace.studies.scaling.model import Cost, Link, Model, straggling, sum_s

BETWEEN = Cost(400e-6, 1e-9)
MODEL = Model(
    mode="growing-batch", messages=(30_000,) * 8, rows=(512,), rollout=(0.05, 0.0),
    learn=(0.03, 0.0), memory=Cost(), sockets=Cost(9.0, 9.0), largest=2, own_comm_s=0.0,
    sync_s=0.001, other_s=0.0, steps=1000.0, link=Link(), notes=(),
)  # fmt: skip


@pytest.fixture
def sums():
    return importlib.import_module("sums")


def test_a_prediction_takes_the_cost_between_hosts_in_place_of_the_studys_own(sums, tmp_path):
    def found(model, **args):
        fitted = dataclasses.asdict(model)
        fitted["link"]["bytes_per_s"] = None  # as a study writes it
        measured = [{"world_size": 1, "fps": 12_500.0}]
        text = json.dumps({"model": fitted, "measured": measured})
        (tmp_path / "model.json").write_text(text)
        rows = sums.predicted(tmp_path, BETWEEN, sums.Args(**args))
        return {row["learners"]: row for row in rows}["128"]

    comm_s = dataclasses.replace(MODEL, sockets=BETWEEN).at(128)["t_comm"]
    late_s = 0.001 * straggling(128)
    row = found(MODEL)
    assert row["comm, ms"] == f"{comm_s * 1e3:.2f}"
    assert row["speed-up"] == f"{128 * 0.08 / (0.08 + comm_s + late_s):.1f}"
    assert row["none late"] == f"{128 * 0.08 / (0.08 + comm_s):.1f}"
    fewer_s = dataclasses.replace(MODEL, sockets=BETWEEN, largest=8).at(128)["t_comm"]
    assert fewer_s < comm_s
    row = found(MODEL, larger=4.0, per_machine=8)
    assert row["speed-up"] == f"{128 * 0.32 / (0.32 + fewer_s + 4 * late_s):.1f}"
    same = dataclasses.replace(
        MODEL, mode="constant-batch", rollout=(0.0, 0.05), learn=(0.01, 0.02), sync_s=0.0005
    )
    assert found(same, grow=True) == found(MODEL)


def test_the_cost_between_hosts_is_that_of_as_many_as_there_are_cores(sums, monkeypatch):
    monkeypatch.setattr(sums, "num_cores", lambda: 2)
    found = {
        hosts: {"headrace": {str(n): slower * sum_s("sockets", hosts, n, BETWEEN) for n in sizes}}
        for hosts, slower, sizes in ((2, 1.0, (64, 1 << 20)), (4, 9.0, (64, 1 << 20)))
    }
    assert dataclasses.astuple(sums.cost_of(found)) == pytest.approx((400e-6, 1e-9))
    del found[2]
    assert sums.cost_of(found) is None

"""Bytes that an iteration sends, and timing of all-reduces of two real processes."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.studies.machine import wide_console
from headrace.studies.run_table import Study
from headrace.studies.scaling import allreduce


def test_advantages_and_moments_are_exchanged_where_they_are_scaled():
    def sent(algo, **settings):
        config = hr.Config(algo=algo, **settings)
        return allreduce.messages(config, 1000), len(allreduce.rows_told(config))

    free, scaled = {"scale_free": False}, hr.Network(normalize_observations=True)
    assert sent(hr.PPO(epochs=3, minibatches=5), **free) == ([1000] * 15 + [15 * 24], 1)
    assert sent(hr.PPO(epochs=1, minibatches=1, normalize_returns=True), **free)[1] == 2
    assert sent(hr.APPO(epochs=2, minibatches=2), network=scaled) == ([1000] * 4, 2)
    assert sent(hr.IMPACT(t_frequency=3), **free) == ([1000] * 3, 1)
    impact = hr.IMPACT(t_frequency=3, normalize_advantage=True)
    assert sent(impact, **free) == ([1000] * 3 + [24] * 3, 1)


@pytest.mark.usefixtures("forked_children")
def test_two_processes_time_what_is_missing_once(tmp_path, monkeypatch, capsys):
    def measured(sizes):
        table = Study(tmp_path, allreduce.COLUMNS, "allreduce.csv")
        return allreduce.measure(table, [1, 2], sizes, wide_console(), repeats=5)

    found = measured([256, 1 << 16, 256])
    assert [(t.way, t.num_bytes) for t in found] == [
        ("memory", 256), ("memory", 1 << 16), ("sockets", 256), ("sockets", 1 << 16),
    ]  # fmt: skip
    assert all(t.world_size == 2 for t in found)
    assert all(t.seconds > 0 for t in found)
    assert "timing sums of 2 processes over sockets" in capsys.readouterr().out
    monkeypatch.setattr(allreduce, "_apart", None)  # any call fails
    assert measured([256, 1 << 16]) == found
    monkeypatch.setattr(allreduce, "num_cores", lambda: 1)
    assert [t.within_cores for t in measured([256])] == [False, False]


def test_a_world_size_that_fails_is_said_and_left_out(tmp_path, monkeypatch, capsys):
    def apart(way, world_size, *rest):
        if (way, world_size) == ("memory", 3):
            raise RuntimeError("no room")
        return [0.5]

    monkeypatch.setattr(allreduce, "_apart", apart)
    table = Study(tmp_path, allreduce.COLUMNS, "allreduce.csv")
    found = allreduce.measure(table, [2, 3, 4], [256], wide_console())
    assert [(t.way, t.world_size) for t in found] == [
        ("memory", 2), ("sockets", 2), ("sockets", 3), ("memory", 4), ("sockets", 4),
    ]  # fmt: skip
    assert "sums of 3 over memory: no room" in capsys.readouterr().out


@pytest.mark.slow
def test_the_failure_of_a_process_shows_its_output(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*TypeError"):
        allreduce._apart("memory", 2, [256], "many", tmp_path)

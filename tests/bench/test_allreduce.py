"""What an iteration sends, and the timing of all-reduces, by two real processes."""

from __future__ import annotations

import pytest

import headrace as hr
from headrace.bench import allreduce
from headrace.bench.machine import wide_console
from headrace.bench.processes import Processes
from headrace.bench.study import Study


@pytest.mark.parametrize(
    ("algo", "gradients"),
    [
        (hr.PPO(epochs=3, minibatches=5), 15),
        (hr.APPO(epochs=2, minibatches=2), 4),
        (hr.IMPACT(t_frequency=3), 3),
        (hr.IMPALA(), 1),
        (hr.A2C(), 1),
    ],
)
def test_an_iteration_sends_a_gradient_per_step_and_two_small_messages(algo, gradients):
    found = allreduce.messages(hr.Config(algo=algo), 1000)
    assert found == [1000] * gradients + [allreduce.SMALL_BYTES] * 2


def test_two_processes_time_what_is_missing_once(tmp_path, monkeypatch, capsys):
    def measured(sizes):
        table = Study(tmp_path, allreduce.COLUMNS, "allreduce.csv")
        return allreduce.measure(table, [1, 2], sizes, Processes(), wide_console(), repeats=5)

    small, large = measured([256, 1 << 25, 256])
    assert [(t.world_size, t.num_bytes) for t in (small, large)] == [(2, 256), (2, 1 << 25)]
    assert 0 < small.seconds < large.seconds < 10
    assert "timing all-reduces of 2" in capsys.readouterr().out
    monkeypatch.setattr(allreduce, "_apart", None)  # any call fails
    assert measured([256, 1 << 25]) == [small, large]
    monkeypatch.setattr(allreduce, "num_cores", lambda: 1)
    assert [t.within_cores for t in measured([256])] == [False]


def test_a_world_size_that_fails_is_said_and_left_out(tmp_path, monkeypatch, capsys):
    def apart(world_size, *rest):
        if world_size == 3:
            raise RuntimeError("no room")
        return [0.5]

    monkeypatch.setattr(allreduce, "_apart", apart)
    table = Study(tmp_path, allreduce.COLUMNS, "allreduce.csv")
    found = allreduce.measure(table, [2, 3, 4], [256], Processes(), wide_console())
    assert [(t.world_size, t.seconds) for t in found] == [(2, 0.5), (4, 0.5)]
    assert "all-reduces of 3: no room" in capsys.readouterr().out


def test_the_failure_of_a_process_shows_its_output(tmp_path):
    with pytest.raises(RuntimeError, match=r"(?s)ended with code 1.*TypeError"):
        allreduce._apart(2, [256], "many", tmp_path, Processes())

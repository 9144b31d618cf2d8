"""The scaling model recovers known numbers, and doesn't use more than the cores."""

from __future__ import annotations

import math
from dataclasses import astuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.studies.scaling.assumptions import assumptions
from headrace.studies.scaling.model import (
    Cost,
    Link,
    Timing,
    extrapolate,
    fit,
    fit_allreduce,
    fit_share,
    fit_sync,
    nonnegative_least_squares,
    sum_s,
)

SIZES = (1, 2, 4, 8)
MESSAGES = [20_000] * 8 + [64] * 2
ALPHA, BETA = 30e-6, 0.5e-9
SLOWER = 20.0  # sockets
OWN = 2e-4
TIMINGS = [
    Timing(way, size, True, num_bytes, factor * sum_s(way, size, num_bytes, Cost(ALPHA, BETA)))
    for way, factor in (("memory", 1.0), ("sockets", SLOWER))
    for size in SIZES[1:]
    for num_bytes in (256, 20_000, 1 << 20)
]
LARGEST = 8


def measurement(size, mode="constant-batch", way="memory", other=1e-3, exceeds=False) -> dict:
    """Return measurements of a machine whose rollouts take 2 + 40 / W ms, and so on."""
    share = 1 if mode == "growing-batch" else size
    factor = SLOWER if way == "sockets" else 1.0
    comm = OWN + factor * sum(sum_s(way, size, n, Cost(ALPHA, BETA)) for n in MESSAGES)
    parts = {
        "t_rollout": 2e-3 + 40e-3 / share,
        "t_learn": 1e-3 + 60e-3 / share,
        "t_comm": comm,
        "t_sync": 3e-3 * math.sqrt(2 * math.log(size)),
    }
    steps = 1000.0 * size if mode == "growing-batch" else 1000.0
    t_iter = sum(parts.values()) + other
    known = {"world_size": size, "exceeds_cores": exceeds, "steps_per_iter": steps}
    return {**known, "fps": steps / t_iter, "t_iter": t_iter, **parts}


def test_a_sum_waits_once_in_memory_and_log2_of_the_ranks_over_sockets():
    cost, large = Cost(1.0, 0.0), 1 << 20
    assert [sum_s("memory", size, 100, cost) for size in (1, 2, 5)] == [0.0, 1.0, 1.0]
    assert [sum_s("sockets", size, 100, cost) for size in (1, 2, 5, 8)] == [0.0, 1.0, 4.0, 3.0]
    assert [sum_s("sockets", size, large, cost) for size in (2, 4, 8, 9)] == [1.0, 4.0, 6.0, 8.0]
    cost = Cost(0.0, 1.0)
    assert [sum_s("memory", size, 100, cost) for size in (2, 4)] == [200.0, 400.0]
    assert [sum_s("sockets", size, 100, cost) for size in (2, 4, 128)] == [100.0, 200.0, 700.0]
    assert [sum_s("sockets", size, large, cost) for size in (2, 8)] == [large, 1.75 * large]


def test_ranks_of_a_machine_meet_in_memory_before_the_machines_do():
    model = fit("constant-batch", [measurement(1)], TIMINGS, [64], 4, rows_told=[100])
    assert model is not None
    memory, sockets = model.memory, model.sockets
    told = sockets.of(5, 31 * 100)  # to 32 ranks in 5 messages
    within, between = memory.of(1, 4 * 64), sockets.of(3, 3 * 64)  # 8 machines of 4
    assert model.at(32)["t_comm"] == pytest.approx(model.own_comm_s + 2 * within + between + told)


@pytest.mark.parametrize("mode", ["constant-batch", "growing-batch"])
def test_the_model_finds_the_numbers_again_that_made_the_measurements(mode):
    points = [measurement(size, mode) for size in SIZES]
    model = fit(mode, points, TIMINGS, MESSAGES[:-1], LARGEST, rows_told=MESSAGES[-1:])
    assert astuple(model.memory) == pytest.approx((ALPHA, BETA))
    assert astuple(model.sockets) == pytest.approx((SLOWER * ALPHA, SLOWER * BETA))
    assert model.own_comm_s == pytest.approx(OWN)
    assert model.sync_s == pytest.approx(3e-3)
    assert model.other_s == pytest.approx(1e-3)
    expected = (42e-3, 0.0) if mode == "growing-batch" else (2e-3, 40e-3)
    assert model.rollout == pytest.approx(expected)
    assert model.notes == ()
    for size in SIZES:
        real = measurement(size, mode)
        found = model.at(size)
        for name in ("t_rollout", "t_learn", "t_comm", "t_sync", "t_iter"):
            assert found[name] == pytest.approx(real[name]), name
        assert found["fps"] == pytest.approx(real["steps_per_iter"] / real["t_iter"])
        assert found["rho_comm"] == pytest.approx(real["t_comm"] / real["t_iter"])
        assert found["rho_sync"] == pytest.approx(real["t_sync"] / real["t_iter"])


@given(alpha=st.floats(1e-6, 1e-2), beta=st.floats(1e-11, 1e-7))
def test_alpha_and_beta_are_found_whatever_they_are(alpha, beta):
    timings = [
        Timing("memory", size, True, n, sum_s("memory", size, n, Cost(alpha, beta)))
        for size in (2, 3, 8)
        for n in (256, 65536, 1 << 22)
    ]
    assert astuple(fit_allreduce(timings, "memory")) == pytest.approx((alpha, beta), rel=1e-6)
    assert fit_allreduce(timings, "sockets") is None


@given(a=st.floats(0, 1), b=st.floats(0, 1))
def test_what_divides_and_what_does_not_are_told_apart(a, b):
    points = [(size, a + b / size) for size in SIZES]
    assert fit_share(points, "constant-batch") == pytest.approx((a, b), abs=1e-9)


@given(
    columns=st.lists(
        st.tuples(*[st.floats(-9, 9, allow_subnormal=False)] * 2), min_size=3, max_size=6
    ),
    y=st.lists(st.floats(-9, 9), min_size=6, max_size=6),
    other=st.tuples(st.floats(0, 5), st.floats(0, 5)),
)
def test_no_other_numbers_above_0_fit_better(columns, y, other):
    matrix, y = np.array(columns), np.array(y[: len(columns)])
    x = nonnegative_least_squares(matrix, y)
    assert x.min() >= 0
    error = np.square(matrix @ x - y).sum()
    assert error <= np.square(matrix @ np.array(other) - y).sum() + 1e-6


def test_times_that_grow_with_the_ranks_are_not_explained_by_negative_costs():
    assert fit_share([(1, 1.0), (2, 3.0)], "constant-batch") == pytest.approx((2.0, 0.0))
    assert fit_share([(1, 4.0), (2, 1.0)], "constant-batch")[0] == 0.0
    assert fit_sync([(1, 1.0)]) == 0.0
    assert fit_sync([(2, -1.0)]) == 0.0


def test_points_beyond_the_cores_change_nothing():
    used = [measurement(size) for size in (1, 2)]
    wild = [
        measurement(size, exceeds=True)
        | {"t_learn": 9.0, "t_sync": 9.0, "t_comm": 9.0, "steps_per_iter": 1.0}
        for size in (4, 8)
    ]
    timings = [t for t in TIMINGS if t.world_size == 2]
    slow = [Timing("memory", 4, False, 256, 9.0), Timing("sockets", 8, False, 1 << 20, 9.0)]
    alone = fit("constant-batch", used, timings, MESSAGES, LARGEST)
    assert fit("constant-batch", used + wild, timings + slow, MESSAGES, LARGEST) == alone
    assert fit("constant-batch", wild, timings, MESSAGES, LARGEST) is None


def test_too_few_points_are_said_and_taken_to_divide():
    model = fit("constant-batch", [measurement(2)], TIMINGS[:3], MESSAGES, LARGEST)
    assert model.rollout == pytest.approx((0.0, 44e-3))  # 22 ms with W = 2
    assert [note for note in model.notes if "Only W = 2" in note]
    assert model.notes[0] in assumptions(model, 2)


def test_one_learner_alone_says_nothing_of_communication_and_waiting():
    model = fit("growing-batch", [measurement(1, "growing-batch")], [], MESSAGES, LARGEST)
    assert (model.sync_s, model.memory, model.sockets) == (0.0, Cost(0.0, 0.0), Cost(0.0, 0.0))
    assert model.own_comm_s == pytest.approx(OWN)
    notes = " ".join(model.notes)
    assert "waiting at barriers" in notes
    assert "Not every transport was timed" in notes
    timed = fit("growing-batch", [measurement(1, "growing-batch")], TIMINGS, MESSAGES, LARGEST)
    assert "Not every way" not in " ".join(timed.notes)
    assert timed.at(2)["t_comm"] == pytest.approx(measurement(2)["t_comm"])


def test_a_network_between_machines_adds_its_latency_and_caps_the_bandwidth():
    points = [measurement(size) for size in SIZES]
    here = fit("constant-batch", points, TIMINGS, MESSAGES, LARGEST)
    far = fit("constant-batch", points, TIMINGS, MESSAGES, LARGEST, link=Link(latency_s=1e-3))
    hops = 10  # of 2 machines of 8 for 10 sums
    assert far.at(16)["t_comm"] - here.at(16)["t_comm"] == pytest.approx(hops * 1e-3)
    assert far.at(4) == here.at(4)  # within the machine
    slow = fit("constant-batch", points, TIMINGS, MESSAGES, LARGEST, link=Link(bytes_per_s=1e6))
    more = (2 * 64 + 8 * 20_000) * (1e-6 - SLOWER * BETA)
    assert slow.at(16)["t_comm"] - here.at(16)["t_comm"] == pytest.approx(more)
    fast = fit("constant-batch", points, TIMINGS, MESSAGES, LARGEST, link=Link(bytes_per_s=1e12))
    assert fast.at(16) == here.at(16)
    assert "1000 µs" in " ".join(assumptions(far, 2))
    assert "0.008 Gbit/s" in " ".join(assumptions(slow, 2))


def test_the_assumptions_name_the_fitted_numbers_and_where_they_end():
    model = fit("constant-batch", [measurement(s) for s in SIZES], TIMINGS, MESSAGES, LARGEST)
    text = "\n".join(assumptions(model, 2))
    for words in (
        "2.000 ms + 40.000 ms / W", "1.000 ms + 60.000 ms / W", "0.200 ms of local work of a rank",
        "Up to W = 8", "30.0 µs a message and 0.500 ns a byte", "600.0 µs", "10.000 ns a byte",
        "10 sums per iteration", "8 of 20,000 bytes and 2 of 64 bytes",
        "3.000 ms * sqrt(2 ln W)", "beyond this machine's 2", "loopback",
    ):  # fmt: skip
        assert words in text


def test_speedups_are_relative_to_the_reference_as_if_that_scaled_ideally():
    model = fit(
        "growing-batch", [measurement(s, "growing-batch") for s in SIZES], [], MESSAGES, LARGEST
    )
    (row,) = extrapolate(model, [32], (2, 500.0))
    assert row["world_size"] == 32
    assert row["fps"] == pytest.approx(model.at(32)["fps"])
    assert row["speedup_fps"] == pytest.approx(row["fps"] / 250.0)
    assert row["efficiency"] == pytest.approx(row["fps"] / 250.0 / 32)

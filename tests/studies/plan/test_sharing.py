"""Cores and bandwidth in the simulation: work is conserved, the learner goes first."""

from __future__ import annotations

import math

import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from headrace.studies.plan.sharing import (
    ACTOR_WEIGHT,
    LEARNER_WEIGHT,
    Cores,
    ResourceSharing,
    bandwidth,
)


def ends(speeds, jobs):
    """Return when jobs of (start, kind, work) end, in their order."""
    env = simpy.Environment()
    sharing = ResourceSharing(env, 2, lambda counts: (*speeds(counts), 1.0)[:2])
    found = {}

    def job(number, start, kind, work):
        yield env.timeout(start)
        yield sharing.run(kind, work)
        found[number] = env.now

    for number, one in enumerate(jobs):
        env.process(job(number, *one))
    env.run()
    return [found[number] for number in range(len(jobs))]


def test_two_transfers_share_the_network_and_the_last_has_it_alone():
    assert ends(bandwidth(10.0), [(0.0, 0, 10.0), (0.5, 0, 10.0)]) == pytest.approx([1.5, 2.0])


def test_a_job_without_work_ends_at_once():
    assert ends(bandwidth(10.0), [(1.0, 0, 0.0), (0.0, 0, 20.0)]) == pytest.approx([1.0, 2.0])


@given(st.lists(st.tuples(st.floats(0, 5), st.floats(0.001, 5)), min_size=1, max_size=12))
def test_a_busy_network_delivers_all_its_bytes_and_no_more(jobs):
    found = ends(bandwidth(2.0), [(start, 0, work) for start, work in jobs])
    for (start, work), end in zip(jobs, found, strict=True):
        assert end >= start + work / 2.0 - 1e-9
    busy = 0.0  # the same work, one after the other, ends at the same time
    for start, work in sorted(jobs):
        busy = max(busy, start) + work / 2.0
    assert max(found) == pytest.approx(busy)


def test_actors_share_cores_evenly_once_there_are_more_of_them():
    cores = Cores(2.0, 1.0, 1.0)
    assert cores((2, 0))[0] == 1.0
    assert cores((4, 0))[0] == 0.5
    assert ends(cores, [(0.0, 0, 1.0)] * 4) == pytest.approx([2.0] * 4)


def test_environments_that_wait_need_no_core():
    cores = Cores(2.0, 0.25, 1.0)
    assert cores((8, 0))[0] == 1.0
    assert cores((16, 0))[0] == 0.5


def test_the_learner_goes_first_and_actors_take_what_it_leaves():
    actor, learner = Cores(2.0, 1.0, 1.0)((2, 1))
    assert learner == 1.0
    assert actor == pytest.approx(0.5)
    actor, learner = Cores(2.0, 1.0, 2.0)((1, 1))  # a learner with two threads
    share = 2 * LEARNER_WEIGHT / (2 * LEARNER_WEIGHT + ACTOR_WEIGHT)
    assert learner == pytest.approx(share)
    assert actor + 2 * learner == pytest.approx(2.0)


@given(st.integers(0, 50), st.integers(0, 1), st.floats(0.5, 8), st.floats(0.05, 1))
def test_no_more_cores_are_used_than_there_are(actors, learners, cores, share):
    actor, learner = Cores(cores, share, 1.0)((actors, learners))
    assert actors * share * actor + learners * learner <= cores * (1 + 1e-9) + 1e-9
    assert 0 < actor <= 1.0
    assert 0 < learner <= 1.0


def test_busy_neighbours_slow_each_other_down():
    cores = Cores(2.0, 1.0, 1.0, actor_crowding=1.5, learner_crowding=1.2)
    assert cores((1, 0))[0] == 1.0
    assert cores((2, 0))[0] == pytest.approx(1 / 1.5)
    assert cores((1, 1)) == pytest.approx((1 / 1.5, 1 / 1.2))
    waiting = Cores(2.0, 0.5, 1.0, actor_crowding=1.5)  # only its computing is slower
    assert waiting((4, 0))[0] == pytest.approx(1 / 1.25)
    assert Cores(math.inf, 1.0, 1.0, 1.5, 1.5)((99, 1)) == (1.0, 1.0)

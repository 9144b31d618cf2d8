"""A run's own costs, as its tally knows them, beside its speed."""

from __future__ import annotations

from unittest import mock

import pytest

import headrace as hr
from headrace.rundir import run_progress
from headrace.rundir.episodes import Episodes
from headrace.rundir.league_run import league_metrics
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.run_progress import Progress, RunProgress
from headrace.transport.queue import Header

ONE_MS = 1_000_000


def plan_of(config, first_s=0.003):
    """What the summary says after two updates of two rollouts, 100 steps and 20 ms each."""
    progress = Progress()
    with mock.patch.object(run_progress.time, "monotonic", return_value=1.0) as clock:
        tally = RunProgress(progress, config, 0, 0.0)
        for learn_s in (first_s, 0.003):
            meter = MetricAccumulator()
            for actor in range(2):
                meter.rollout(Header(actor, 0, 0, 100, 0, 20 * ONE_MS, 5 * ONE_MS))
            meter.learn_s, meter.publish_s, meter.comm_s, meter.wait_s = learn_s, 0.001, 0.001, 9.0
            progress.env_steps += meter.env_steps
            tally.add(meter)
        clock.return_value += 0.025  # in which the second update took 200 steps
        others = {"learning_rate": 0.1, "eval_return": None, **league_metrics(None)}
        tally.result(Episodes(), restarts=0, **others)
        return tally.summary()["plan"]


SETTINGS = {"num_actors": 2, "envs_per_actor": 10, "fragment_length": 10}


def test_actors_and_learner_are_rated_by_what_they_did_without_waiting():
    plan = plan_of(hr.Config("CartPole-v1", hr.APPO(), **SETTINGS))
    assert plan["actors_sps"] == pytest.approx(2 * 100 / 0.020)
    assert plan["learners_sps"] == pytest.approx(400 / 0.010)
    assert plan["planned_sps"] == pytest.approx(10_000)
    assert plan["measured_sps"] == pytest.approx(8_000)
    assert plan["bottleneck"] == "actors"


def test_actors_that_may_not_all_act_while_the_learner_computes_are_told_so():
    settings = SETTINGS | {"num_actors": 3, "batch_size": 200}
    plan = plan_of(hr.Config("CartPole-v1", hr.APPO(), **settings))
    assert plan["bottleneck"] == "max_lag"
    assert "with max_lag=1, 2 of 3 actors may act while it computes" in plan["line"]


def test_what_the_first_update_took_longer_is_in_the_plan_no_more_than_in_the_speed():
    config = hr.Config("CartPole-v1", hr.PPO(), **SETTINGS)
    assert plan_of(config, first_s=30.0) == plan_of(config)


def test_a_synchronous_run_is_planned_as_taking_turns():
    plan = plan_of(hr.Config("CartPole-v1", hr.PPO(), **SETTINGS))
    assert plan["planned_sps"] == pytest.approx(1 / (1 / 10_000 + 1 / 40_000))


def test_in_one_process_actors_are_no_faster_than_one():
    plan = plan_of(hr.Config("CartPole-v1", hr.APPO(), transport="serial", **SETTINGS))
    assert plan["actors_sps"] == pytest.approx(5_000)


def test_several_learners_share_out_what_was_added_up():
    plan = plan_of(hr.Config("CartPole-v1", hr.PPO(), num_learners=2, **SETTINGS))
    assert plan["learners_sps"] == pytest.approx(2 * 40_000)
    assert plan["actors_sps"] == pytest.approx(10_000)


def test_nothing_is_planned_where_actors_learn_or_before_anything_is_known():
    assert plan_of(hr.Config("CartPole-v1", hr.A3C(), **SETTINGS)) is None
    config = hr.Config("CartPole-v1", hr.PPO(), **SETTINGS)
    assert RunProgress(Progress(), config, 0, 0.0).summary()["plan"] is None

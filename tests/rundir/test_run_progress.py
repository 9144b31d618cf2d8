"""A run's costs as measured by its progress, and its speed."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import pytest

import headrace as hr
from headrace.processes.core_use import CoreUse
from headrace.rundir import run_progress
from headrace.rundir.episodes import Episodes
from headrace.rundir.league_run import league_metrics
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.run_progress import CURVE_POINTS, Progress, RunProgress
from headrace.transport.queue import Header

ONE_MS = 1_000_000


def plan_of(config, first_s=0.003):
    """Return the summary after two updates of two rollouts, 100 steps and 20 ms each."""
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


@pytest.mark.parametrize(
    ("use", "seconds", "engine", "advice"),
    [
        (CoreUse(0.3, 0.0, 1.7), 10.0, "auto", "engine='threads'"),
        (CoreUse(0.3, 0.0, 1.7), 10.0, "threads", "more envs_per_actor"),
        (CoreUse(0.3, 0.0, 1.7), 4.0, "auto", None),  # too short
        (CoreUse(1.6, 0.0, 0.4), 10.0, "auto", None),  # they compute
        (CoreUse(0.3, 1.5, 0.2), 10.0, "auto", None),  # other programs use the cores
        (None, 10.0, "auto", None),
    ],
)
def test_environments_that_wait_are_known_by_their_processor_time(use, seconds, engine, advice):
    config = hr.Config("CartPole-v1", hr.APPO(), engine=engine, **SETTINGS)
    with mock.patch.object(run_progress.time, "monotonic", return_value=0.0) as clock:
        tally = RunProgress(Progress(), config, 0, 0.0)
        tally._whole_use = SimpleNamespace(measure=lambda restart: use)
        clock.return_value = seconds
        total = SimpleNamespace(acting_ns=18e9)  # of two actors in ten seconds
        assert tally._for_waits(total) == advice


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


def num_results(updates: int, update_s: float, total_steps: int = 10**9, **settings) -> int:
    """Return the results of a run whose updates have 100 steps each and take this long."""
    config = hr.Config("CartPole-v1", hr.APPO(), total_steps=total_steps, **settings)
    progress = Progress()
    with mock.patch.object(run_progress.time, "monotonic", return_value=0.0) as clock:
        tally = RunProgress(progress, config, 0, 0.0)
        tally.begin(Episodes())
        progress.start()
        for _ in range(updates):
            clock.return_value += update_s
            meter = MetricAccumulator()
            meter.env_steps = 100
            due = tally.is_due(config.log_interval_s, meter.env_steps)
            progress.add(meter)
            tally.add(meter)
            progress.now()
            if due:
                others = {"learning_rate": 0.1, "eval_return": None, **league_metrics(None)}
                tally.result(Episodes(), restarts=0, **others)
        return tally.num_results


def test_short_runs_have_enough_results_for_a_curve():
    assert CURVE_POINTS <= num_results(updates=500, update_s=0.01) <= 150  # 5 s
    assert num_results(updates=33, update_s=0.045) >= 30  # almost one per update
    assert num_results(updates=20, update_s=0.001, total_steps=2_000) == 20
    assert CURVE_POINTS <= num_results(200, 0.001, total_steps=20_000) <= 70
    assert num_results(updates=10, update_s=3.0) == 10


def test_long_runs_have_a_result_per_interval_and_a_bounded_number_more():
    for update_s, seconds in ((0.05, 200), (0.2, 400)):
        assert seconds < num_results(round(seconds / update_s), update_s) < seconds + 220
    assert num_results(updates=500, update_s=0.1, log_interval_s=1e9) == 1
    assert num_results(updates=50, update_s=0.1, log_interval_s=0.0) == 50


def test_evaluations_that_training_waited_for_dont_count_for_the_speed():
    config = hr.Config("CartPole-v1", hr.PPO(), **SETTINGS)
    progress, others = Progress(), {"learning_rate": 0.1, "eval_return": None}
    with mock.patch.object(run_progress.time, "monotonic", return_value=0.0) as clock:
        tally = RunProgress(progress, config, 0, 0.0)
        tally.begin(Episodes())
        progress.start()
        for _ in range(3):
            clock.return_value += 1.0
            progress.env_steps += 200
            progress.now()
            tally.add(MetricAccumulator())
            clock.return_value += 9.0
            progress.exclude(9.0)
            assert tally.is_due(10.0)
            result = tally.result(Episodes(), restarts=0, **others, **league_metrics(None))
            assert result.sps == pytest.approx(200)
    assert tally.sps == pytest.approx(200)
    assert tally.summary()["seconds_to_first_update"] == pytest.approx(1.0)

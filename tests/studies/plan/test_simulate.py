"""The simulation matches manual calculations and conservation laws."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tries import examples

from headrace.actors.weight_sync import sync_rule
from headrace.errors import ConfigError
from headrace.studies.plan.durations import Duration, rollout_duration
from headrace.studies.plan.picture import draw
from headrace.studies.plan.scenario import Scenario
from headrace.studies.plan.sharing import Cores
from headrace.studies.plan.simulate import simulate

ACT, UPDATE = 0.010, 0.005


def scenario(num_actors=1, act=ACT, update=UPDATE, slots=2, batch=1, **more) -> Scenario:
    durations = [d if isinstance(d, Duration) else Duration(d) for d in (act, update)]
    return Scenario(num_actors, *durations, slots, batch, **more)


def test_taking_turns_an_update_takes_collecting_and_learning():
    found = simulate(scenario(4, slots=3, batch=12, synchronous=True, steps_per_rollout=10.0), 50)
    period = 3 * ACT + UPDATE
    assert found.sps == pytest.approx(12 * 10 / period)
    assert found.updates_per_s == pytest.approx(1 / period)
    assert found.utilisation_learner == pytest.approx(UPDATE / period)
    assert found.utilisation_actors == pytest.approx(3 * ACT / period)
    assert dict(found.lags) == {0: 12 * 40}


def test_collecting_for_10_ms_and_updating_for_5_leaves_the_learner_idle_two_thirds():
    found = simulate(scenario(slots=1, synchronous=True), 50)
    assert found.utilisation_learner == pytest.approx(1 / 3)
    found = simulate(scenario(slots=2), 50)
    assert (found.utilisation_actors, found.utilisation_learner) == pytest.approx((1.0, 0.5))


@pytest.mark.parametrize("num_actors", [1, 2, 3, 8])
def test_side_by_side_the_slower_side_decides(num_actors):
    found = simulate(scenario(num_actors, slots=3), 200)
    assert found.updates_per_s == pytest.approx(min(num_actors / ACT, 1 / UPDATE), rel=0.02)


@pytest.mark.parametrize("max_lag", [1, 2, 5])
@pytest.mark.parametrize("num_actors", [1, 2, 4])
def test_with_a_slow_learner_all_slots_wait_and_the_lag_is_their_number(num_actors, max_lag):
    """Each of n actors owns max_lag + 1 slots of one rollout each; a batch has one per actor.

    Once all slots are full, a released slot (just after a publication) is filled at once with the
    newest weights, and waits for the max_lag earlier batches.
    """
    slow = scenario(num_actors, act=0.001, update=1.0, slots=max_lag + 1, batch=num_actors)
    found = simulate(slow, 60)
    assert dict(found.lags) == {max_lag: num_actors * 48}
    assert found.utilisation_learner == pytest.approx(1.0)
    assert max(found.depths) == num_actors * (max_lag + 1) - num_actors


def test_a_single_fast_learner_is_one_update_ahead_of_what_its_actor_began_with():
    """The next rollout starts with the current weights while the update is computed."""
    assert dict(simulate(scenario(slots=2), 50).lags) == {1: 40}


def test_actors_in_step_lag_by_the_batches_of_a_round_and_their_place_in_the_next():
    """Three actors commit together and restart before any update: all three updates of this round
    precede their next rollouts, and the second and third have one and two more.
    """
    found = simulate(scenario(3, act=0.030, slots=2), 95)
    assert set(found.lags) == {3, 4, 5}
    assert max(found.lags.values()) - min(found.lags.values()) <= 1


def test_fetching_every_k_updates_makes_rollouts_older_by_half_of_k():
    every = simulate(scenario(slots=2), 400)
    fourth = simulate(scenario(slots=2, sync=sync_rule("every-4", 0.0)), 400)
    assert fourth.pulls == pytest.approx(every.pulls / 4, abs=2)
    assert dict(fourth.lags) == dict.fromkeys((1, 2, 3, 4), 80)


def test_drift_fetches_weights_once_its_mean_is_above_the_threshold():
    """0.1 nats per update: lags 1, 2, 3, 4 have a mean of 0.25, which is known when the fourth's
    slot comes back; by then the fifth rollout has started.
    """
    drifting = scenario(slots=2, sync=sync_rule("adaptive", 0.24), drift=0.1)
    found = simulate(drifting, 400)
    assert found.pulls == pytest.approx(found.committed / 5, abs=1)
    assert dict(found.lags) == dict.fromkeys((1, 2, 3, 4, 5), 64)
    never = simulate(dataclasses.replace(drifting, drift=0.0), 400)
    assert never.pulls == 1
    assert never.lag_max == 399


def test_an_old_rollout_is_dropped_and_its_slot_comes_back():
    slow = scenario(act=0.001, update=1.0, slots=4, batch=1)
    found = simulate(dataclasses.replace(slow, max_policy_lag=1), 60)
    assert found.lag_max == 1
    assert found.dropped > 50  # for ever: whoever loses a rollout keeps its slot
    assert found.committed == found.trained + found.dropped + found.waiting
    assert simulate(dataclasses.replace(slow, max_policy_lag=3), 60).dropped == 0


def test_an_actor_that_is_slower_delays_only_itself_unless_they_take_turns():
    even, uneven = scenario(4, update=1e-6), scenario(4, update=1e-6, stragglers=1,
                                                      straggler_factor=4.0)  # fmt: skip
    assert simulate(even, 400).updates_per_s == pytest.approx(4 / ACT, rel=0.02)
    assert simulate(uneven, 400).updates_per_s == pytest.approx(3.25 / ACT, rel=0.02)
    turns = dataclasses.replace(uneven, slots_per_actor=1, rollouts_per_update=4, synchronous=True)
    assert simulate(turns, 50).updates_per_s == pytest.approx(1 / (4 * ACT), rel=0.01)


def test_a_crash_loses_the_rollout_in_progress_and_the_time_of_a_restart():
    """The expected time of a rollout with restarts is (e^(t/m) - 1) (m + r), as for a job that
    starts over after each failure (Poisson with mean m, r to repair).
    """
    mean, restart = 0.050, 0.020
    never = sync_rule("every-999999", 0.0)
    found = simulate(scenario(update=1e-6, mtbf_s=mean, restart_s=restart, sync=never), 4000)
    expected = math.expm1(ACT / mean) * (mean + restart)
    assert 1 / found.updates_per_s == pytest.approx(expected, rel=0.05)
    assert found.crashes > 400
    assert found.pulls == 1 + found.crashes  # a replacement has no weights yet
    assert found.committed == found.trained + found.waiting


def test_random_arrivals_at_a_constant_service_queue_as_m_d_1_does():
    """Rollouts of many independent actors arrive nearly at random; their mean number in the queue
    is rho^2 / (2 (1 - rho)).
    """
    rho, n = 0.7, 300
    act = Duration(n * UPDATE / rho, 1.0, "gamma")
    found = simulate(scenario(n, act=act, slots=40, batch=1), 30_000)
    assert found.utilisation_learner == pytest.approx(rho, rel=0.03)
    assert found.depth_mean == pytest.approx(rho**2 / (2 * (1 - rho)), rel=0.15)


def test_bandwidth_caps_the_rate_and_more_of_it_is_never_slower():
    base = scenario(8, slots=3, batch=8, rollout_bytes=1e6, weights_bytes=2e5)
    rates = [
        simulate(dataclasses.replace(base, bytes_per_s=rate), 60).sps
        for rate in (1e7, 3e7, 1e8, 1e9, 1e12)
    ]
    assert rates == sorted(rates)
    assert rates[0] <= 1e7 / 1e6
    assert rates[0] == pytest.approx(1e7 / 1.2e6, rel=0.1)
    assert rates[-1] == pytest.approx(simulate(base, 60).sps, rel=0.01)


def test_cores_cap_the_rate_of_actors_and_learner_together():
    shared = scenario(4, slots=3, batch=4, cores=Cores(2.0, 1.0, 1.0))
    found = simulate(shared, 400)
    assert found.updates_per_s == pytest.approx(2.0 / (4 * ACT + UPDATE), rel=0.02)
    assert simulate(dataclasses.replace(shared, cores=Cores(9.0, 1.0, 1.0)), 400).sps > found.sps


@examples(40)
@given(
    num_actors=st.integers(1, 9),
    per_actor=st.integers(1, 3),
    max_lag=st.integers(0, 3),
    oldest=st.sampled_from([None, 0, 1, 3]),
    cv=st.floats(0, 2),
    mtbf=st.sampled_from([None, 0.05]),
    cores=st.sampled_from([math.inf, 1.0, 2.5]),
    seed=st.integers(0, 99),
)
def test_every_rollout_is_trained_on_once_dropped_or_waiting(
    num_actors, per_actor, max_lag, oldest, cv, mtbf, cores, seed
):
    found = simulate(
        scenario(
            num_actors,
            act=Duration(ACT, cv, "lognormal"),
            slots=per_actor * (max_lag + 1),
            batch=num_actors * per_actor,
            synchronous=max_lag == 0,
            max_policy_lag=oldest,
            mtbf_s=mtbf,
            cores=Cores(cores, 1.0, 1.0),
            seed=seed,
        ),
        20,
    )
    assert found.trained == 20 * num_actors * per_actor
    assert found.committed == found.trained + found.dropped + found.waiting
    assert 0 <= found.utilisation_learner <= 1 + 1e-9
    assert max(found.depths, default=0) <= num_actors * per_actor * (max_lag + 1)
    if max_lag == 0:
        assert set(found.lags) == {0}
        assert found.dropped == 0
    if oldest is not None:
        assert found.lag_max <= oldest


def test_the_same_seed_gives_the_same_simulation():
    random = scenario(3, act=Duration(ACT, 0.5, "gamma"), seed=3)
    assert simulate(random, 50) == simulate(random, 50)
    assert simulate(random, 50) != simulate(dataclasses.replace(random, seed=4), 50)


def test_ten_thousand_actors_finish():
    act = Duration(ACT, 0.5, "gamma")
    found = simulate(scenario(10_000, act=act, slots=3, batch=5_000, cores=Cores(6e3, 1, 1)), 5)
    assert found.trained == 25_000
    assert found.committed == 25_000 + found.waiting


def test_a_picture_is_drawn(tmp_path):
    found = simulate(scenario(3, act=Duration(ACT, 0.5, "gamma")), 50)
    draw(found, "three actors", tmp_path / "plan.png")
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("field", "value"),
    [("slots_per_actor", 0), ("rollouts_per_update", 3), ("stragglers", 2), ("mtbf_s", 0.0),
     ("restart_s", -1.0), ("bytes_per_s", 0.0), ("straggler_factor", 0.0), ("synchronous", True)],
)  # fmt: skip
def test_an_impossible_scenario_is_refused_by_name(field, value):
    name = "rollouts_per_update" if field == "synchronous" else field
    with pytest.raises(ConfigError, match=name):
        dataclasses.replace(scenario(), **{field: value})


# -- durations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["lognormal", "gamma"])
@pytest.mark.parametrize("cv", [0.1, 1.0])
def test_times_have_the_mean_and_the_deviation_that_were_asked_for(shape, cv):
    draws = Duration(3.0, cv, shape).draws(np.random.default_rng(0), (200_000,))
    assert draws.min() > 0
    assert draws.mean() == pytest.approx(3.0, rel=0.02)
    assert draws.std() == pytest.approx(3.0 * cv, rel=0.05)


def test_a_rollout_of_computing_environments_adds_all_steps_up():
    step = Duration(0.002, 1.0, "gamma")
    found = rollout_duration(step, 32, 16, "computing", inference_s=0.001)
    assert found.mean_s == pytest.approx(32 * (16 * 0.002 + 0.001))
    assert found.cv * found.mean_s == pytest.approx(math.sqrt(32 * 16) * 0.002)


def test_of_waiting_environments_the_slowest_decides():
    constant = rollout_duration(Duration(0.002), 32, 16, "waiting", inference_s=0.001)
    assert constant.mean_s == pytest.approx(32 * 0.003)
    found = rollout_duration(Duration(0.002, 1.0, "gamma"), 32, 16, "waiting")  # exponential
    harmonic = sum(1 / k for k in range(1, 17))
    assert found.mean_s == pytest.approx(32 * 0.002 * harmonic, rel=0.03)


@pytest.mark.parametrize("wrong", [{"mean_s": 0.0}, {"cv": -1.0}, {"shape": "normal"}])
def test_an_impossible_duration_is_refused_by_name(wrong):
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Duration(**{"mean_s": 1.0} | wrong)

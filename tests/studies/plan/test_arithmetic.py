"""Arithmetic of a plan: the worked example's numbers, and the report of a run."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

import headrace as hr
from headrace.actors.sizes import Sizes
from headrace.errors import ConfigError
from headrace.rundir.bottleneck import ActorsAhead, RunTimes, ThroughputRates, compare
from headrace.studies.plan.arithmetic import Setup, forecasts, saturating_actors

SLOW = Setup(num_actors=32, envs_per_actor=16, env_step_s=0.020, learner_sps=500_000)
FAST = Setup(num_actors=32, envs_per_actor=16, env_step_s=0.002, learner_sps=500_000)


def forecast(setup, start):
    return next(f for name, f in forecasts(setup) if name.startswith(start))


def test_512_environments_at_20_ms_take_half_an_hour_for_50_million_steps():
    given_ = forecast(SLOW, "as given")
    assert given_.rates.sps == pytest.approx(25_600)
    assert given_.seconds / 60 == pytest.approx(32.6, abs=0.05)
    assert given_.rates.bottleneck == "actors"


def test_at_2_ms_they_take_three_minutes_and_actors_remain_the_bottleneck():
    given_ = forecast(FAST, "as given")
    assert given_.rates.sps == pytest.approx(256_000)
    assert given_.seconds / 60 == pytest.approx(3.3, abs=0.05)
    assert given_.rates.bottleneck == "actors"
    assert forecast(SLOW, "environments 10 x").rates.sps == pytest.approx(given_.rates.sps)


@pytest.mark.parametrize("setup", [SLOW, FAST], ids=["20 ms", "2 ms"])
def test_more_learners_bring_nothing_where_actors_are_the_bottleneck(setup):
    assert forecast(setup, "2 learners").rates.sps == forecast(setup, "as given").rates.sps
    assert forecast(setup, "33 actors").rates.sps == pytest.approx(33 / 32 * setup.rates.sps)


def test_63_actors_saturate_the_learner_and_64_bring_no_more():
    assert saturating_actors(FAST) == 63
    assert forecast(FAST, "64 actors").rates.sps == forecast(FAST, "63 actors").rates.sps == 500_000


@given(actors=st.integers(1, 300), envs=st.integers(1, 64), learners=st.integers(1, 4))
def test_that_many_actors_are_just_enough(actors, envs, learners):
    base = {"envs_per_actor": envs, "num_learners": learners, "learner_sps": 40_000.0}
    enough = saturating_actors(Setup(num_actors=actors, env_step_s=0.003, **base))
    rates = Setup(num_actors=enough, env_step_s=0.003, **base).rates
    assert rates.sps == pytest.approx(rates.learners_sps)
    if enough > 1:
        fewer = Setup(num_actors=enough - 1, env_step_s=0.003, **base).rates
        assert fewer.sps < rates.learners_sps


def test_environments_that_compute_take_turns_on_their_core():
    waiting = Setup(num_actors=2, envs_per_actor=10, env_step_s=0.001, inference_s=0.002)
    computing = Setup(
        num_actors=2, envs_per_actor=10, env_step_s=0.001, inference_s=0.002, envs="computing"
    )
    assert waiting.rates.actors_sps == pytest.approx(2 * 10 / 0.003)
    assert computing.rates.actors_sps == pytest.approx(2 * 10 / 0.012)


def test_taking_turns_nothing_saturates_and_either_side_helps_a_little():
    setup = Setup(synchronous=True, env_step_s=0.002, learner_sps=256_000)
    assert saturating_actors(setup) is None
    assert setup.rates.sps == pytest.approx(128_000)
    assert setup.rates.bottleneck == "both"
    for change in ("64 actors", "2 learners"):
        assert forecast(setup, change).rates.sps == pytest.approx(256_000 / 1.5)


@pytest.mark.parametrize(
    ("field", "value"),
    [("num_actors", 0), ("learner_sps", 0.0), ("env_step_s", -1.0), ("env_step_s", 0.0),
     ("envs", "sleeping"), ("total_steps", 0)],
)  # fmt: skip
def test_an_impossible_setup_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        Setup(**{field: value})


# -- what a run says of itself ---------------------------------------------------------------------

SPENT = {
    "env_steps": 100_000, "num_rollouts": 100, "acting_s": 4.0, "learning_s": 0.5,
    "num_actors": 2, "num_learners": 1, "synchronous": False,
}  # fmt: skip


def test_a_runs_own_costs_name_its_bottleneck_in_one_line():
    plan = compare(RunTimes(**SPENT), 48_000)
    assert (plan["actors_sps"], plan["learners_sps"]) == (50_000, 200_000)
    assert (plan["planned_sps"], plan["measured_sps"]) == (50_000, 48_000)
    assert plan["line"].startswith("actors are the bottleneck: 48,000 of 50,000 steps/s planned; ")
    assert plan["line"].endswith("a faster learner or a smaller network would not")
    assert "\n" not in plan["line"]
    assert "faster environment would help" in plan["line"]


@given(spent=st.floats(0.1, 10.0), measured=st.floats(1, 1e6), turns=st.booleans())
def test_no_run_is_said_to_have_made_more_than_all_of_its_plan(spent, measured, turns):
    plan = compare(RunTimes(**SPENT | {"acting_s": spent, "synchronous": turns}), measured)
    if " of " in (said := plan["line"].partition("; ")[0]):
        made, planned = said.rpartition(": ")[2].removesuffix(" steps/s planned").split(" of ")
        assert int(made.replace(",", "")) <= int(planned.replace(",", ""))
    else:
        assert measured > plan["planned_sps"]
    faster = compare(RunTimes(**SPENT), 63_812)["line"]
    assert ": 63,812 steps/s, planned 50,000; " in faster


def test_another_actor_is_advised_only_with_a_free_core():
    for free, words in ((None, "another actor (on a free core)"), (1, "(on a free core)"),
                        (0, "more cores for another actor, or a faster environment,")):  # fmt: skip
        plan = compare(RunTimes(**SPENT | {"free_cores": free}), 48_000)
        assert words in plan["line"]


def test_environments_that_wait_get_their_own_advice():
    plan = compare(RunTimes(**SPENT | {"free_cores": 0, "for_waits": "engine='threads'"}), 48_000)
    assert "; engine='threads' (the environments mostly wait) would help, " in plan["line"]
    assert "more cores" not in plan["line"]


def test_sums_over_learners_are_shared_out_among_them():
    plan = compare(RunTimes(**SPENT | {"num_learners": 2, "learning_s": 8.0, "num_actors": 4}), 1.0)
    assert (plan["actors_sps"], plan["learners_sps"]) == (100_000, 25_000)
    assert plan["bottleneck"] == "learners"
    assert plan["line"].startswith("the learners are the bottleneck: 1 of 25,000 steps/s")
    assert "network would help, another actor" in plan["line"]


def test_taking_turns_adds_both_times_up():
    plan = compare(RunTimes(**SPENT | {"synchronous": True}), 39_000)
    assert plan["planned_sps"] == pytest.approx(100_000 / 2.5)
    assert plan["line"].startswith("taking turns, actors are the bottleneck")
    assert plan["line"].endswith("only a little")


def test_in_one_process_two_actors_are_as_fast_as_one():
    plan = compare(RunTimes(**SPENT | {"one_process": True}), 1.0)
    assert plan["actors_sps"] == 25_000
    assert plan["planned_sps"] == pytest.approx(100_000 / 4.5)
    assert "transport=shm" in plan["line"]


def test_sides_that_hardly_differ_are_both_named():
    plan = compare(RunTimes(**SPENT | {"learning_s": 2.02}), 1.0)
    assert plan["bottleneck"] == "both"
    assert "only both together would help" in plan["line"]


# What a run of Atari on a GPU and 16 cores took: 15 actors, of which 8 could act at a time.
HELD = {
    "env_steps": 1_119_689, "num_rollouts": 8_748, "acting_s": 1_984.0, "learning_s": 117.3,
    "num_actors": 15, "num_learners": 1, "synchronous": False, "waiting_s": 1_673.0,
    "idle_s": 126.1, "ahead": ActorsAhead(1, Sizes(15, 1, 128, 1024)),
}  # fmt: skip


def test_who_waits_for_each_other_is_told_which_setting_lets_them_go_on():
    plan = compare(RunTimes(**HELD), 4_595)
    assert plan["bottleneck"] == "max_lag"
    assert plan["line"] == (
        "actors and learner wait for each other: 4,595 of 8,465 steps/s planned; with max_lag=1, "
        "8 of 15 actors may act while it computes; if cores are free, batch_size=1920, max_lag=2 "
        "(for all of them) or a shorter fragment_length would help, another actor hardly"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"ahead": ActorsAhead(1, Sizes(15, 1, 128, 1920))},  # all may act
        {"ahead": ActorsAhead(2, Sizes(15, 1, 128, 1024))},
        {"ahead": None},
        {"synchronous": True, "ahead": ActorsAhead(0, Sizes(15, 1, 128, 1024))},
        {"one_process": True},
        {"waiting_s": 300.0},
        {"idle_s": 20.0},
    ],
)
def test_who_has_no_need_to_wait_or_does_not_is_not_told_so(change):
    plan = compare(RunTimes(**HELD | change), 4_000)
    assert plan["bottleneck"] != "max_lag"
    assert "wait for each other" not in plan["line"]


@pytest.mark.parametrize(
    ("actors", "batch", "lag", "learners", "tasks"),
    [(15, 1024, 1, 1, 1), (30, 2048, 1, 2, 1), (10, 20, 2, 1, 2), (15, 30, 4, 1, 3)],
)
def test_what_is_advised_is_valid_and_lets_every_actor_act(actors, batch, lag, learners, tasks):
    names = ("CartPole-v0", "CartPole-v1", "Acrobot-v1")[:tasks] if tasks > 1 else ()
    algo, steps = hr.APPO(max_lag=lag), 10 if tasks > 1 else 128

    def ahead(**change) -> ActorsAhead:
        config = hr.Config(
            **({"tasks": names} if names else {"env": "CartPole-v1"}),
            **{"algo": algo, "num_actors": actors, "envs_per_actor": 1, "num_learners": learners,
               "fragment_length": steps, "batch_size": batch} | change,
        )  # fmt: skip
        return ActorsAhead(config.algo.max_lag, config.per_learner.sizes, learners, tasks)

    held = ahead()
    assert held.num_acting < actors // learners
    said = dict(re.findall(r"(batch_size|max_lag)=(\d+)(?:,| or| \(for)", held.line))
    for change in (
        {"batch_size": int(said["batch_size"])}, {"algo": hr.APPO(max_lag=int(said["max_lag"]))}
    ):  # fmt: skip
        assert ahead(**change).num_acting == actors // learners


@pytest.mark.parametrize("missing", ["env_steps", "num_rollouts", "acting_s", "learning_s"])
def test_nothing_is_said_of_what_is_not_known(missing):
    assert compare(RunTimes(**SPENT | {missing: 0}), 1.0) is None
    assert compare(RunTimes(**SPENT), 0.0) is None


@given(a=st.floats(1, 1e6), b=st.floats(1, 1e6))
def test_taking_turns_is_never_faster(a, b):
    turns, beside = ThroughputRates(a, b, True), ThroughputRates(a, b, False)
    assert turns.sps < beside.sps <= min(a, b)
    assert beside.sps <= 2 * turns.sps * (1 + 1e-9)


def test_the_table_compares_taking_turns_with_working_side_by_side():
    setup = Setup(num_actors=1, envs_per_actor=512, env_step_s=0.010, learner_sps=102_400)
    found = dict(forecasts(setup))
    turns = found["taking turns (synchronous)"].rates
    assert turns.sps == pytest.approx(512 / 0.015)
    assert turns.utilisation_learners == pytest.approx(1 / 3)
    assert turns.utilisation_actors == pytest.approx(2 / 3)
    beside = setup.rates
    assert (beside.utilisation_actors, beside.utilisation_learners) == pytest.approx((1.0, 0.5))
    name, again = forecasts(found["taking turns (synchronous)"])[-1]
    assert name == "side by side (asynchronous)"
    assert again.rates.sps == pytest.approx(51_200)

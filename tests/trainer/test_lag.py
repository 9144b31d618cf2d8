"""Policy lag stays within its bound, and is reported correctly.

Configurations vary actors, rollouts, passes, transport and lag; every result of a run is compared
with ``Config.lag_bound``.
"""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from tries import few_of
from worlds import SlowEnv

import headrace as hr
from headrace.learner.staleness import LagCounter
from headrace.rundir.episodes import Episodes
from headrace.rundir.league_run import league_metrics
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.run_progress import Progress, RunProgress

STEPS = 64  # of a rollout of `tiny`


def impact(**settings) -> hr.IMPACT:
    return hr.IMPACT(t_target=8, **settings)


# algorithm, actors, rollouts per update, weight_sync
SERIAL = [
    (hr.APPO(max_lag=1), 1, 1, "every"),
    (hr.APPO(max_lag=2, epochs=2, minibatches=4), 2, 3, "every"),
    (hr.APPO(max_lag=1), 4, 4, "every-3"),
    (hr.IMPALA(max_lag=3), 3, 2, "every-2"),
    (hr.IMPALA(max_lag=1, replay_fraction=0.5, replay_capacity=40), 2, 2, "every"),
    (hr.IMPALA(max_lag=2, minibatches=4, replay_fraction=0.75, replay_capacity=7), 1, 1, "every-2"),
    (impact(max_lag=1, buffer_size=2, passes=1), 2, 2, "every"),
    (impact(max_lag=2, buffer_size=4, passes=2), 1, 1, "every"),
    (impact(max_lag=3, buffer_size=3, passes=4), 3, 1, "every-2"),
    (impact(max_lag=1, buffer_size=3, passes=3, t_frequency=2), 2, 1, "every"),
    (hr.PPO(epochs=2, minibatches=4), 2, 2, "every"),
    (hr.A2C(), 3, 6, "every"),
]
SHM = [
    (hr.APPO(max_lag=2), 4, 1, "every"),
    (hr.APPO(max_lag=1, epochs=2, minibatches=2), 3, 2, "every"),
    (hr.IMPALA(max_lag=3), 2, 1, "every-2"),
    (hr.IMPALA(max_lag=1, replay_fraction=0.5, replay_capacity=16), 2, 3, "every"),
    (impact(max_lag=2, buffer_size=2, passes=1), 3, 2, "every"),
    (impact(max_lag=1, buffer_size=1, passes=2), 2, 1, "every"),
    (impact(max_lag=2, buffer_size=2, passes=3), 4, 2, "every"),
    (impact(max_lag=3, buffer_size=3, passes=4, t_frequency=2), 2, 1, "every"),
]


def config_of(tiny, case, transport: str, **settings) -> hr.Config:
    algo, num_actors, wanted, sync = case
    shape = {"num_actors": num_actors, "batch_size": STEPS * wanted, "weight_sync": sync}
    return tiny(algo=algo, transport=transport, **shape, **settings)


def held_to_its_bound(results: list[hr.Result], bound: int) -> int:
    lags = [r.lag_max for r in results if r.lag_max is not None]
    assert max(lags) <= bound
    for r in results:
        if r.lag_mean is not None:
            assert 0 <= r.lag_mean <= r.lag_max
            assert 0 <= r.lag_steps <= r.lag_steps_max
            assert r.lag_steps_max >= r.lag_max  # an update is an optimiser step or more
    return max(lags)


@pytest.mark.parametrize("number", few_of(range(len(SERIAL)), [1, 2, 4, 8, 9, 10]))
def test_in_one_process_lag_keeps_its_bound(number, tiny, finish):
    case = SERIAL[number]
    config = config_of(tiny, case, "serial", total_steps=1000)
    trainer, results = finish(config)
    most = held_to_its_bound(results, config.lag_bound)
    assert trainer.progress.dropped == 0
    # Nothing waits here: only a fixed interval of fetches, and passes over old data, age it.
    every, algo = config.sync.every - 1, case[0]
    if isinstance(algo, hr.IMPACT):
        assert most >= (algo.passes - 1) * algo.buffer_size // algo.t_frequency
    elif getattr(algo, "replay_fraction", 0):
        assert most > every
    else:
        assert most == every


@pytest.mark.filterwarnings("ignore:num_actors=4")
@pytest.mark.parametrize("number", few_of(range(len(SHM)), [1, 2, 7]))
def test_between_processes_lag_keeps_its_bound(number, tiny, finish):
    config = config_of(tiny, SHM[number], "shm", total_steps=1000)
    trainer, results = finish(config)
    held_to_its_bound(results, config.lag_bound)
    assert trainer.env_steps >= 1000


def test_a_straggler_is_dropped_and_counted_and_the_run_goes_on(tiny, finish, tmp_path):
    # Slower than a few updates, also where other programs take the machine.
    slow = {"step_seconds": 0.1, "once": str(tmp_path / "slow")}
    shape = {"num_actors": 2, "batch_size": STEPS, "transport": "shm", "engine": "sync"}
    config = tiny(
        env=SlowEnv, env_kwargs=slow, algo=hr.APPO(max_lag=1), total_steps=1_000_000, **shape
    )
    trainer, results = finish(config, until=lambda r: r.dropped >= 2)
    assert trainer.progress.dropped >= 2
    assert held_to_its_bound(results, 1) <= 1
    assert trainer.progress.pulls > trainer.progress.dropped  # it gets newer weights all the same


def test_where_most_is_dropped_the_run_says_so(tiny):
    tally = RunProgress(Progress(), tiny(), 0, 0.0)
    known = {"learning_rate": 0.1, "eval_return": None, **league_metrics(None)}
    meter = MetricAccumulator()
    meter.count(dropped=3, num_rollouts=2)
    tally.add(meter)
    with pytest.warns(UserWarning, match="most rollouts are dropped.*max_lag"):
        tally.result(Episodes(), restarts=0, **known)


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "credits", "per_actor", "first", "bound"),
    [
        ({"algo": hr.APPO(max_lag=2), "num_actors": 3, "batch_size": STEPS}, 3, 1, 2, 2),
        ({"algo": hr.APPO(max_lag=2), "num_actors": 2, "batch_size": STEPS}, 3, 2, 2, 2),
        ({"algo": hr.APPO(max_lag=1), "weight_sync": "every-4"}, 2, 2, 4, 4),
        ({"algo": hr.APPO(max_lag=1), "weight_sync": "adaptive"}, 2, 2, None, None),
        ({"algo": hr.APPO(max_lag=1), "max_policy_lag": 7}, 2, 2, 7, 7),
        ({"algo": hr.IMPACT(max_lag=2, buffer_size=4, passes=2)}, 3, 3, 6, 10),
        ({"algo": hr.IMPACT(max_lag=2, buffer_size=4, passes=2, t_frequency=3)}, 3, 3, 2, 4),
        ({"algo": hr.IMPALA(max_lag=2, replay_fraction=0.5, replay_capacity=17)}, 3, 3, 2, 5),
        ({"algo": hr.PPO(), "num_actors": 3}, 3, 1, 0, 0),
        ({"algo": hr.A3C(max_lag=2), "num_actors": 4, "batch_size": STEPS}, 12, 3, None, None),
    ],
)
def test_what_follows_from_the_settings(tiny, settings, credits, per_actor, first, bound):
    config = tiny(**settings)
    assert (config.num_credits, config.slots_per_actor) == (credits, per_actor)
    assert (config.max_first_lag, config.lag_bound) == (first, bound)


def test_slots_that_the_whole_run_can_not_fill_are_not_allocated(tiny):
    for algo, slots in ((hr.A3C(max_lag=1_000_000), 11), (hr.APPO(max_lag=9), 10)):
        assert tiny(algo=algo, total_steps=10 * STEPS).slots_per_actor == slots


def test_an_actor_of_more_slots_than_fit_its_pipe_gets_them_as_it_works(tiny, finish):
    sizes = {"envs_per_actor": 1, "fragment_length": 1, "batch_size": 400, "transport": "shm"}
    trainer, _ = finish(tiny(algo=hr.A2C(), total_steps=1, actor_timeout_s=60.0, **sizes))
    assert trainer.updates == 1


def test_actors_that_would_idle_are_told_of(tiny):
    with pytest.warns(UserWarning, match=r"num_actors=4.*only 3 .*=3, batch_size=128 or max_lag=3"):
        tiny(algo=hr.APPO(max_lag=2), num_actors=4, batch_size=STEPS)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for better in (
            {"num_actors": 3, "batch_size": STEPS},
            {"num_actors": 4, "batch_size": 2 * STEPS},
            {"num_actors": 4, "batch_size": STEPS, "algo": hr.APPO(max_lag=3)},
        ):
            tiny(**({"algo": hr.APPO(max_lag=2)} | better))


def greatest_lag(algo: hr.IMPACT, max_lag: int, passes_counted: int) -> int:
    """Literally: when IMPACT takes its batches, and how far updates get while one waits.

    A rollout that starts while batch b is the latest has at most max_lag + 1 batches of rollouts
    before it, including itself and those that the learner holds. So it is in batch b + max_lag at
    most while b is held, and in b + max_lag + 1 once b's update is over.
    """
    steps = [
        t
        for t in range(2000)
        if (t // algo.buffer_size) % algo.passes == 0  # slots are filled on the first of K rounds
    ]
    used = [t + passes_counted * algo.buffer_size for t in steps]  # its last use
    worst = 0
    for b in range(20 * algo.buffer_size):
        update = steps[b] // algo.t_frequency
        worst = max(worst, used[b + max_lag] // algo.t_frequency - update)
        worst = max(worst, used[b + max_lag + 1] // algo.t_frequency - (update + 1))
    return worst


def test_impacts_bound_in_updates_is_that_of_its_buffer():
    shapes = itertools.product(range(1, 6), range(1, 5), range(1, 4), range(4))
    for buffer_size, passes, t_frequency, max_lag in shapes:
        algo = impact(buffer_size=buffer_size, passes=passes, t_frequency=t_frequency)
        first = greatest_lag(algo, max_lag, 0)
        last = greatest_lag(algo, max_lag, passes - 1)
        assert first <= algo.max_updates(max_lag) <= first + (t_frequency > 1)
        bound = algo.max_updates(max_lag) + algo.reuse_updates(8)
        assert last <= bound <= last + 2 * (t_frequency > 1)


# -- ages ----------------------------------------------------------------------------------------


def test_ages_are_those_of_every_column_at_every_step():
    rng, ages = np.random.default_rng(0), LagCounter()
    published, num_steps = {}, 0
    lags, steps = [], []
    for version in range(60):
        published[version] = num_steps
        ages.published(version, num_steps)
        fresh = torch.tensor(rng.integers(max(-1, version - 5), version + 1, 7))
        for _ in range(rng.integers(1, 4)):
            replayed = torch.tensor(rng.integers(-1, version + 1, 5))
            used = [fresh, replayed][rng.integers(2)]
            for v in used.tolist():
                if v >= 0:
                    lags.append(version - v)
                    steps.append(num_steps - published[v])
            ages.step(used, num_steps)
            num_steps += 1
        if version == 30:
            restored = LagCounter()
            restored.load_state_dict(ages.state_dict())
            restored._counts, restored._version = ages._counts, version
            ages = restored
    assert ages.take() == {
        "num_lags": len(lags),
        "lag_sum": sum(lags),
        "lag_steps_sum": sum(steps),
        "lag_max": max(lags),
        "lag_steps_max": max(steps),
    }
    assert ages.take() == {}


def test_a_version_that_is_forgotten_took_as_many_steps_as_those_since():
    ages = LagCounter()
    for version in range(10_050):
        ages.published(version, 4 * version)
    ages.step(torch.tensor([3, 10_049]), 4 * 10_049 + 1)
    counts = ages.take()
    assert counts["lag_steps_max"] == 4 * 10_049 + 1 - 4 * 3
    assert len(ages.state_dict()["published"]) == 10_000


def test_minibatches_age_while_the_learner_moves_on(tiny, finish):
    algo = hr.PPO(epochs=2, minibatches=8)
    _, results = finish(tiny(algo=algo, transport="serial"))
    assert {r.lag_max for r in results} == {0}
    assert {r.lag_steps for r in results} == {7.5}  # the mean of 0 to 15
    assert {r.lag_steps_max for r in results} == {15}

"""Distribution of a run's settings over several learners, and rejected settings."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tries import examples

import headrace as hr
from headrace.errors import ConfigError

SIZES: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 64, "fragment_length": 32}


def whole(
    num_actors: int, envs_per_actor: int, fragment_length: int, batch_size: int, synchronous: bool
) -> hr.Config:
    return hr.Config(
        algo=hr.A2C() if synchronous else hr.IMPALA(),
        num_actors=num_actors,
        envs_per_actor=envs_per_actor,
        fragment_length=fragment_length,
        batch_size=batch_size,
    )


def is_synchronous(run: hr.Config) -> bool:
    return run.algo.max_lag == 0


WHOLES = st.builds(
    lambda actors, envs, fragment, rollouts, synchronous: whole(
        actors,
        envs,
        fragment,
        rollouts * fragment * envs * (actors if synchronous else 1),
        synchronous,
    ),
    actors=st.integers(1, 8),
    envs=st.integers(1, 24),
    fragment=st.integers(1, 9),
    rollouts=st.integers(1, 8),
    synchronous=st.booleans(),
)


def possible(run: hr.Config, num_learners: int) -> bool:
    """Return whether some number of environments per actor makes equal shares; tries all."""
    actors = next(n for n in range(1, run.num_actors + 1) if n * num_learners >= run.num_actors)
    for envs in range(1, run.num_actors * run.envs_per_actor + 1):
        whole_again = envs * actors * num_learners == run.num_actors * run.envs_per_actor
        steps = run.fragment_length * envs * num_learners * (actors if is_synchronous(run) else 1)
        if whole_again and run.batch_size % steps == 0:
            return True
    return False


def possible_if_rounded(run: hr.Config, num_learners: int) -> bool:
    """Return whether it is possible once the batch of an asynchronous run is rounded up."""
    if is_synchronous(run):
        return possible(run, num_learners)
    actors = num_learners * -(-run.num_actors // num_learners)
    return run.num_actors * run.envs_per_actor % actors == 0


@pytest.mark.filterwarnings("ignore:batch_size=.* is rounded up")
@given(*(st.integers(low, high) for low, high in ((1, 4), (1, 6), (1, 5), (1, 8), (2, 5))))
@examples(100)
def test_asynchronous_batches_are_rounded_up_to_the_least_that_can_be_shared_out(
    actors, envs, fragment, rollouts, learners
):
    envs *= learners
    before = whole(actors, envs, fragment, rollouts * fragment * envs, False)
    assume(possible_if_rounded(before, learners))
    run = replace(before, num_learners=learners)
    steps, unit = before.batch_size, before.rollout_steps
    assert run.batch_size % unit == 0
    assert run.per_learner.batch_size * learners == run.batch_size
    smaller = [s for s in range(steps, run.batch_size) if s % unit == 0]
    assert not any(possible(replace(before, batch_size=s), learners) for s in smaller)


@given(WHOLES, st.integers(1, 40))
@examples(300)
def test_whatever_can_be_shared_out_is_and_nothing_else(run, num_learners):
    assert (run.share(num_learners) is not None) == possible(run, num_learners)


@given(WHOLES, st.integers(1, 12))
@examples(300)
def test_shares_add_up_and_make_valid_settings(run, num_learners):
    share = run.share(num_learners)
    assume(share is not None)
    whole, run = run, replace(run, num_learners=num_learners, seed=7, preempt_fraction=None)
    own = run.per_learner
    assert {name: getattr(own, name) for name in share} == share
    assert set(share) == {"num_actors", "envs_per_actor", "batch_size"}
    assert own.num_learners == 1
    assert num_learners * own.resolved_batch_size == run.resolved_batch_size == whole.batch_size
    num_envs = num_learners * own.num_actors * own.envs_per_actor
    assert num_envs == whole.num_actors * whole.envs_per_actor
    assert own.num_actors * num_learners >= whole.num_actors  # no actor has more environments
    assert own.envs_per_actor <= whole.envs_per_actor
    assert own.rollouts_per_update * own.rollout_steps == own.batch_size
    if is_synchronous(whole):
        assert own.rollouts_per_update % own.num_actors == 0
    kept = ("env", "fragment_length", "total_steps", "seed", "network", "eval_episodes")
    assert all(getattr(own, name) == getattr(run, name) for name in kept)


@pytest.mark.filterwarnings("ignore:batch_size=.* is rounded up")
@given(WHOLES, st.integers(2, 60))
@examples(200)
def test_what_cannot_be_shared_out_names_the_nearest_numbers_that_can(whole, num_learners):
    assume(not possible_if_rounded(whole, num_learners))
    with pytest.raises(ConfigError) as caught:
        replace(whole, num_learners=num_learners)
    text = str(caught.value)
    assert f"num_learners={num_learners} " in text
    for name in ("num_actors", "envs_per_actor", "batch_size"):
        assert f"{name}={getattr(whole, name)}" in text
    near = [int(x) for x in re.search(r"nearest: ([\d or]+)$", text)[1].split(" or ")]
    for number in near:
        assert replace(whole, num_learners=number).per_learner.num_learners == 1
    limit = whole.num_actors * whole.envs_per_actor
    below = [n for n in range(1, num_learners) if possible_if_rounded(whole, n)]
    above = [n for n in range(num_learners + 1, limit + 2) if possible_if_rounded(whole, n)]
    assert near == below[-1:] + above[:1]


@pytest.mark.parametrize(
    ("run", "num_learners", "share"),
    [
        (whole(1, 64, 32, 2048, True), 2, (1, 32, 1024)),
        (whole(4, 16, 32, 2048, True), 2, (2, 16, 1024)),
        (whole(3, 16, 8, 384, True), 2, (2, 12, 192)),  # 1.5 actors of 16 are 2 of 12
        (whole(2, 8, 4, 64, True), 4, (1, 4, 16)),
        (whole(2, 8, 4, 128, False), 2, (1, 8, 64)),
        (whole(2, 8, 4, 32, False), 2, None),  # half a rollout each
        (whole(1, 4, 8, 32, True), 8, None),  # more learners than environments
        (whole(1, 64, 32, 2048, True), 1, (1, 64, 2048)),
    ],
)
def test_some_shares(run, num_learners, share):
    found = run.share(num_learners)
    assert (found and tuple(found.values())) == share


def test_one_learner_has_all_as_it_was_set():
    run = hr.Config(env="Acrobot-v1", **SIZES | {"num_actors": 3}, max_policy_lag=4)
    assert run.per_learner is run


# -- what does not go together --------------------------------------------------------------------

REPLAY: dict[str, Any] = {"replay_fraction": 0.5}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "none": ({"num_learners": 0}, "num_learners=0 must be 1 or more (nearest: 1)"),
    "float": ({"num_learners": 2.0}, "num_learners=2.0 must be a whole number (an int)"),
    "a3c": (
        {"num_learners": 2, "algo": hr.A3C()},
        "num_learners=2 must be 1 with a3c, whose actors compute the gradients (use num_actors)",
    ),
    "replay": (
        {"num_learners": 2, "algo": hr.IMPALA(**REPLAY, replay_capacity=1023)},
        "replay_capacity=1023 must be a multiple of num_learners=2 (nearest: 1024)",
    ),
    "replay-small": (
        {"num_learners": 4, "algo": hr.IMPALA(**REPLAY, replay_capacity=1)},
        "replay_capacity=1 must be a multiple of num_learners=4 (nearest: 4)",
    ),
    "core": (
        {
            "num_learners": 2,
            "envs_per_actor": 6,
            "algo": hr.PPO(minibatches=4),
            "network": hr.Network(core="lstm"),
        },
        "minibatches=4 is more than the 3 environments of a learner's batch",
    ),
    "preempt-async": (
        {"preempt_fraction": 0.5, "num_learners": 2, "algo": hr.IMPALA()},
        "preempt_fraction=0.5 must be None with an asynchronous algorithm",
    ),
    "preempt-all": (
        {"preempt_fraction": 1.0, "num_learners": 2, "algo": hr.PPO()},
        "preempt_fraction=1.0 must be above 0 and below 1, or None",
    ),
    "preempt-deterministic": (
        {"preempt_fraction": 0.5, "num_learners": 2, "algo": hr.PPO(), "deterministic": True},
        "deterministic=True must be False where rollouts are cut short by time",
    ),
    "cut-deterministic": (
        {"max_rollout_seconds": 1.0, "algo": hr.PPO(), "deterministic": True},
        "deterministic=True must be False where rollouts are cut short by time",
    ),
    "cut-at-once": (
        {"max_rollout_seconds": 0.0},
        "max_rollout_seconds=0.0 must be above 0 seconds, or None",
    ),
    "deterministic-async": (
        {"deterministic": True, "num_learners": 2, "algo": hr.IMPALA(), "transport": "shm"},
        "deterministic=True needs a synchronous algorithm (a2c, ppo) or transport='serial'",
    ),
    "target-no-interval": (
        {"target_return": 5.0},
        "target_return=5.0 must be None without eval_interval and eval_episodes",
    ),
    "target-no-episodes": (
        {"target_return": 5.0, "eval_interval": 100, "eval_episodes": 0},
        "target_return=5.0 must be None without eval_interval and eval_episodes",
    ),
    "timeout": ({"learner_timeout_s": 0.0}, "learner_timeout_s=0.0 must be above 0"),
    "cores": ({"cores_per_learner": 0}, "cores_per_learner=0 must be 1 or more, or None"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_is_refused_with_its_reason(case):
    wrong, words = REFUSED[case]
    with pytest.raises(ConfigError, match=re.escape(words)):
        hr.Config(**SIZES | wrong)


@pytest.mark.parametrize(
    "right",
    [
        {"num_learners": 2, "algo": hr.IMPALA(**REPLAY, replay_capacity=1024)},
        {"num_learners": 2, "algo": hr.IMPALA(replay_capacity=1023)},  # there is no replay
        {"preempt_fraction": 0.5, "num_learners": 2, "algo": hr.PPO()},
        {"target_return": -5.0, "eval_interval": 100, "eval_episodes": 1},
        {"deterministic": True, "num_learners": 2, "algo": hr.IMPALA(), "transport": "serial"},
        {"max_rollout_seconds": 1.0, "num_learners": 2},
    ],
    ids=["replay", "no-replay", "preempt", "target", "deterministic", "cut"],
)
def test_what_can_be_is_not_refused(right):
    own = hr.Config(**SIZES | right).per_learner
    assert own.num_learners == 1
    assert own.preempt_fraction is None


def test_learners_share_out_the_replayed_columns():
    run = hr.Config(num_learners=4, algo=hr.IMPALA(**REPLAY, replay_capacity=1024), **SIZES)
    assert run.per_learner.algo == hr.IMPALA(**REPLAY, replay_capacity=256)

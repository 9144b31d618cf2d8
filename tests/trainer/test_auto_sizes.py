"""Automatic sizes: what is chosen, what is never chosen, and where it is written."""

from __future__ import annotations

import dataclasses
import json
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from patience import PATIENCE_S
from tries import examples

import headrace as hr
import headrace.trainer.auto_sizes
from headrace.actors.sizes import SIZES
from headrace.algos import ALGORITHMS
from headrace.algos.common import LearnsAt, Span
from headrace.api import resume_config
from headrace.config import Config
from headrace.envs.probe import probe
from headrace.envs.step_cost import StepCost, step_cost
from headrace.errors import ConfigError
from headrace.trainer.auto_sizes import choose, few_steps, sized
from tests.distributed.threads import run_learners

CHEAP, LANDER, SLOW, SLOWEST = 1e-6, 40e-6, 4e-3, 1.0
WAITS = 0.02


def chosen(config: Config, seconds: float | None, cores: int, busy: float = 1.0) -> tuple[int, ...]:
    found = choose(config, None if seconds is None else StepCost(seconds, busy), cores)
    return tuple(getattr(found, name) for name in SIZES)


TABLE = {
    # The algorithm's own sizes, and one actor where environments are faster than a learner.
    "appo": (hr.APPO(), {}, CHEAP, 2, (1, 32, 64, 2048)),
    "ppo": (hr.PPO(), {}, CHEAP, 64, (1, 32, 64, 2048)),
    "impala": (hr.IMPALA(), {}, CHEAP, 2, (1, 32, 16, 512)),
    # Actors for all cores, but one for the learner if it learns meanwhile and there are more.
    "two cores": (hr.APPO(), {}, LANDER, 2, (2, 16, 64, 2048)),
    "in turns": (hr.PPO(), {}, LANDER, 4, (4, 8, 64, 2048)),
    "side by side": (hr.APPO(), {}, LANDER, 5, (4, 8, 64, 2048)),
    "on a cluster": (hr.APPO(), {"cluster": "ray:auto"}, LANDER, 4, (4, 8, 64, 2048)),
    "on one of this machine": (hr.APPO(), {"cluster": "ray"}, LANDER, 5, (4, 8, 64, 2048)),
    "more cores than work": (hr.APPO(), {}, 15e-6, 64, (4, 8, 64, 2048)),
    "one process": (hr.PPO(), {"transport": "serial"}, LANDER, 8, (1, 32, 64, 2048)),
    "threads": (hr.PPO(), {"engine": "threads"}, SLOW, 8, (1, 32, 64, 2048)),
    # Fewer environments where an update would take seconds, but not fewer than run at once.
    "slow": (hr.PPO(), {}, 2e-3, 2, (2, 8, 64, 1024)),
    "slower": (hr.PPO(), {}, SLOW, 2, (2, 4, 64, 512)),
    "slowest": (hr.PPO(), {}, SLOWEST, 2, (2, 4, 64, 512)),
    "slow on many cores": (hr.PPO(), {}, SLOWEST, 16, (16, 1, 64, 1024)),
    "slow, short": (hr.IMPALA(), {}, SLOWEST, 2, (2, 4, 16, 256)),
    # What is given stays, and the rest fits it.
    "actors": (hr.PPO(), {"num_actors": 4}, CHEAP, 1, (4, 8, 64, 2048)),
    "environments": (hr.PPO(), {"envs_per_actor": 256}, CHEAP, 2, (1, 256, 16, 4096)),
    "fragment": (hr.PPO(), {"fragment_length": 128}, CHEAP, 2, (1, 16, 128, 2048)),
    "batch": (hr.PPO(), {"batch_size": 1000}, CHEAP, 2, (1, 20, 50, 1000)),
    "large batch": (hr.PPO(), {"batch_size": 16384}, CHEAP, 2, (1, 32, 64, 16384)),
    "a rollout from each": (hr.PPO(), {"batch_size": None}, LANDER, 2, (2, 16, 64, 2048)),
    "all but the batch": (
        hr.PPO(),
        {"num_actors": 3, "envs_per_actor": 5, "fragment_length": 7},
        CHEAP,
        2,
        (3, 5, 7, None),
    ),
    "no idle actors": (hr.IMPALA(max_lag=1), {"num_actors": 16, "batch_size": 128}, CHEAP, 2,
                       (16, 1, 16, 128)),
    # Learners share out what one would have.
    "two learners": (hr.PPO(), {"num_learners": 2}, LANDER, 1, (2, 16, 64, 2048)),
    "three learners": (hr.PPO(), {"num_learners": 3}, CHEAP, 1, (3, 11, 64, 2112)),
    "whole sequences": (
        hr.PPO(minibatches=48),
        {"network": hr.Network(core="gru")},
        CHEAP,
        2,
        (1, 24, 64, 3072),
    ),
    "not measured": (hr.PPO(), {}, None, 64, (1, 32, 64, 2048)),
}  # fmt: skip


@pytest.fixture
def pinned(monkeypatch):
    """Return the sizes of two algorithms."""
    long = LearnsAt(Span(8, 32, 64), Span(16, 64, 128), Span(512, 2048, 4096))
    short = LearnsAt(Span(8, 32, 64), Span(8, 16, 32), Span(256, 512, 1024))
    for cls, sizes in ((hr.PPO, long), (hr.APPO, long), (hr.IMPALA, short)):
        monkeypatch.setattr(cls, "learns_at", sizes)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_where_nothing_speaks_against_it_an_algorithm_gets_its_best_sizes(name):
    algo = ALGORITHMS[name]()
    num_envs, fragment_length, batch_size = (span.best for span in algo.learns_at)
    expected = 1, num_envs, fragment_length, batch_size
    assert chosen(Config(algo=algo), CHEAP, 2) == chosen(Config(algo=algo), None, 2) == expected


@pytest.mark.parametrize("case", TABLE)
@pytest.mark.usefixtures("pinned")
def test_what_is_chosen(case):
    algo, given, seconds, cores, expected = TABLE[case]
    assert chosen(Config(algo=algo, **given), seconds, cores) == expected


@pytest.mark.usefixtures("pinned")
def test_where_environments_wait_there_are_more_actors_than_cores():
    assert chosen(Config(), SLOW, 2, WAITS)[0] == 8
    assert chosen(Config(), LANDER, 2, WAITS)[0] == 2  # a busy machine looks the same


SOME = st.none() | st.integers(1, 300)


@pytest.mark.filterwarnings("ignore:batch_size=.* is rounded up")
@examples(300)
@given(
    st.sampled_from([cls() for cls in ALGORITHMS.values()] + [hr.PPO(minibatches=48)]),
    st.integers(1, 4),
    st.integers(1, 64),
    st.floats(1e-6, 1.0),
    st.floats(0.0, 1.0),
    st.tuples(SOME, SOME, SOME, st.none() | st.integers(1, 40).map(lambda n: n * 96)),
    st.sampled_from([None, "gru"]),
)
def test_what_is_chosen_fits_and_stays_within_what_was_seen_to_learn(
    algo, learners, cores, seconds, busy, values, core
):
    learners = 1 if algo.learns_in_actors else learners
    fixed = {size: value for size, value in zip(SIZES, values, strict=True) if value}
    base = {"algo": algo, "num_learners": learners, "network": hr.Network(core=core)}
    found, message = None, ""
    try:
        found = choose(Config(**base, **fixed), StepCost(seconds, busy), cores)
    except ConfigError as error:
        message = str(error)
    if found is None:
        assert "nearest" in message
        assert "batch_size" in fixed or {"num_actors", "envs_per_actor"} <= fixed.keys()
        return
    if set(fixed) == set(SIZES) and algo.max_lag:  # whole rollouts of each learner
        size = fixed["batch_size"]
        assert size <= found.batch_size < size + learners * found.per_learner.rollout_steps
        fixed["batch_size"] = found.batch_size
    assert {size: getattr(found, size) for size in fixed} == fixed
    assert all(isinstance(getattr(found, size), int) for size in SIZES[:3])
    assert isinstance(found.batch_size, int) or set(fixed) == set(SIZES[:3])
    assert Config(**{**base, **{size: getattr(found, size) for size in SIZES}}) == found
    if "batch_size" not in fixed:
        assert found.num_credits >= found.num_actors  # none idles
    if not fixed and (core is None or algo != hr.PPO(minibatches=48)):
        at, envs = found.algo.learns_at, found.num_actors * found.envs_per_actor
        sizes = envs, found.fragment_length, found.batch_size
        for span, size in zip(at, sizes, strict=True):
            assert span.least <= size <= span.most


MISFITS = {
    "learners": ({"num_learners": 3, "batch_size": 100}, ["batch_size=100", "99 or 102"]),
    "actors": ({"algo": hr.PPO(), "num_actors": 3, "batch_size": 100}, ["num_actors=3", "99 or"]),
    "environments": ({"envs_per_actor": 7, "batch_size": 100}, ["envs_per_actor=7", "98 or 105"]),
    "none": ({"batch_size": 0}, ["batch_size=0", "nearest: 1"]),
    "half": ({"batch_size": 0.5}, ["batch_size=0.5", "whole number"]),
    "shares": (
        {"num_learners": 2, "num_actors": 1, "envs_per_actor": 5},
        ["num_learners=2", "num_actors=1", "envs_per_actor=5", "nearest"],
    ),
    "a word": ({"num_actors": "all"}, ["num_actors='all'", "'auto'"]),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_nothing_fits_is_refused_before_anything_starts(case, monkeypatch):
    def start():
        raise AssertionError("the fork server was started")

    monkeypatch.setattr(headrace.trainer.start, "start_fork_server", start)
    given, words = MISFITS[case]
    with pytest.raises(ConfigError) as error:
        hr.train("CartPole-v1", **given)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("name", ["rollout_steps", "per_learner", "slots_per_actor"])
def test_what_follows_from_sizes_is_not_known_before_they_are(name):
    with pytest.raises(ConfigError, match="envs_per_actor='auto' must be a number"):
        getattr(Config(num_actors=1), name)


# -- measuring ------------------------------------------------------------------------------------


class Counting(gymnasium.Env):
    """Counts its steps, and fails in step ``fails``."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)
    made = 0

    def __init__(self, fails: int = -1) -> None:
        Counting.made += 1
        self.fails, self.steps = fails, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == self.fails:
            raise RuntimeError("an accident")
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_a_step_of_the_vectorised_cartpole_costs_less_than_one_of_the_loop(monkeypatch):
    monkeypatch.setattr("headrace.envs.step_cost._TOTAL_S", PATIENCE_S)  # for 32 environments
    loop, vectorised = (step_cost("CartPole-v1", e, {}, 0) for e in ("sync", "native"))
    assert 0 < vectorised.seconds < loop.seconds
    assert 0 <= vectorised.busy <= 1


def test_an_environment_that_fails_is_not_timed_and_no_complaint_hides_its_own():
    assert step_cost(Counting, "auto", {"fails": 1}, 0) is None
    config = Config(Counting, env_kwargs={"fails": 1})
    found = probe(config.env, config.engine, config.env_kwargs, 0)
    config, line = sized(config, found, None)
    assert config.num_actors == 1
    assert "failed while its steps were timed" in line


@pytest.mark.parametrize(
    ("seconds", "busy", "engine", "hint"),
    [(0.02, 0.1, "sync", True), (0.02, 0.9, "sync", False), (1e-5, 0.1, "sync", False),
     (0.02, 0.1, "threads", False)],
)  # fmt: skip
def test_threads_are_suggested_for_environments_that_wait(seconds, busy, engine, hint):
    look = SimpleNamespace(step_cost=lambda *about: StepCost(seconds, busy))
    config = Config(Counting, engine=engine)
    _, line = sized(config, probe(config.env, "sync", {}, 0), None, look)
    assert ("it waits for 90% of that time: try engine='threads')" in line) == hint
    assert ("threads" in line) == hint


@pytest.mark.usefixtures("pinned")
def test_a_deterministic_run_measures_nothing(monkeypatch):
    monkeypatch.setattr(headrace.trainer.auto_sizes, "num_cores", lambda: 64)
    config = Config(Counting, hr.PPO(), deterministic=True)
    found = probe(config.env, config.engine, config.env_kwargs, 0)
    before = Counting.made
    config, line = sized(config, found, None)
    assert Counting.made == before
    assert "auto: sizes chosen automatically (deterministic=True skips the measurement)" in line


# -- a run ----------------------------------------------------------------------------------------


def sizes_of(run_dir) -> tuple[int, ...]:
    config = json.loads((run_dir / "config.json").read_text())["config"]
    return tuple(config[name] for name in SIZES)


@pytest.fixture
def unmeasured(monkeypatch):
    """Makes measurements an error."""

    def forbid():
        def fail(*args):
            raise AssertionError("it was measured")

        monkeypatch.setattr("headrace.envs.first_look.step_cost", fail)

    return forbid


@pytest.mark.usefixtures("pinned")
def test_a_run_says_and_writes_its_sizes_and_keeps_them_when_resumed(tmp_path, capsys, unmeasured):
    common = {"transport": "serial", "eval_episodes": 0, "run_dir": str(tmp_path / "run")}
    hr.train("CartPole-v1", hr.PPO(epochs=1), total_steps=2000, **common)
    shown = capsys.readouterr().out
    assert "auto: sizes chosen automatically (an environment step takes" in shown
    assert " us, " in shown
    assert "1 actor × 32 environments, rollouts of 64 steps, batches of 2,048 steps" in shown
    assert sizes_of(tmp_path / "run") == (1, 32, 64, 2048)
    unmeasured()
    assert resume_config(tmp_path / "run").batch_size == 2048
    hr.train("CartPole-v1", hr.PPO(epochs=1), total_steps=4000, resume=True, **common)
    assert sizes_of(tmp_path / "run") == (1, 32, 64, 2048)
    assert "auto:" not in capsys.readouterr().out


def test_where_all_is_given_nothing_is_measured_and_nothing_said(tiny, finish, unmeasured, capsys):
    unmeasured()
    trainer, _ = finish(tiny(transport="serial", total_steps=64))
    assert sizes_of(trainer.run_dir) == (1, 8, 8, None)
    assert "auto" not in capsys.readouterr().out


def test_rank_0_chooses_for_all_learners(tmp_path, monkeypatch):
    calls = []

    def measure(*args):
        calls.append(args)
        return StepCost(CHEAP * len(calls), 1.0)

    monkeypatch.setattr("headrace.envs.first_look.step_cost", measure)
    config = Config(algo=hr.PPO(), num_learners=2, transport="serial", run_dir=str(tmp_path))

    def begin(group):
        return headrace.trainer.start.begin(config, False, group, lambda line: None)[0]

    first, second = run_learners(2, begin)
    assert first == second
    assert first.is_sized
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("algo", "steps"), [(hr.PPO(epochs=2, minibatches=3), 84), (hr.A2C(), 500), (hr.IMPACT(), 50)]
)
def test_too_few_optimiser_steps_warn(tiny, algo, steps):
    config = tiny(algo=algo, total_steps=64 * steps)  # batches of 64
    assert few_steps(config) is None
    for total in (64 * steps - 64, 64 * steps - 127):  # the last batch is always filled
        text = few_steps(dataclasses.replace(config, total_steps=total))
        assert text is not None
        assert "in batches of 64" in text
        assert f"{(steps - 1) * algo.steps_per_batch} optimiser steps" in text

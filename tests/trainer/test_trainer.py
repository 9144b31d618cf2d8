"""Whole runs: reproducible, stopped on request, and reported without gaps or NaN."""

from __future__ import annotations

import json
import math

import gymnasium
import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import headrace as hr
from headrace.learner.learner import Learner
from headrace.rundir import checkpoint
from headrace.rundir.curves import read_run
from headrace.rundir.files import read_jsonl

COUNTING = "worlds:CountingEnv"
IDENTITY = "worlds:IdentityVectorEnv"


class TwoObservations(gymnasium.Env):
    """One step per episode, an observation of two numbers."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 2.0, True, False, {}


@pytest.fixture
def weights(tiny, finish, tmp_path):
    """Return the weights after 50 updates."""
    runs = iter(range(10))

    def train(algo, **settings) -> dict[str, torch.Tensor]:
        run_dir = str(tmp_path / f"run{next(runs)}")
        config = tiny(algo=algo, num_actors=2, total_steps=10**6, run_dir=run_dir, **settings)
        trainer, results = finish(config, until=lambda result: result.updates == 50)
        assert results[-1].updates == trainer.updates == 50
        return trainer.policy.state_dict()

    return train


@pytest.mark.parametrize(
    "algo",
    [
        pytest.param(hr.PPO(epochs=2, minibatches=2), id="ppo"),
        pytest.param(hr.A2C(), id="a2c", marks=pytest.mark.slow),
    ],
)
def test_one_seed_gives_the_same_weights_serially_and_with_shared_memory(weights, algo):
    serial, shm = weights(algo, transport="serial"), weights(algo, transport="shm")
    other = weights(algo, transport="serial", seed=1)
    assert serial.keys() == shm.keys()
    for name, value in serial.items():
        assert torch.equal(value, shm[name]), name
        assert value.ndim < 2 or not torch.equal(value, other[name]), name


# -- the end of a run ---------------------------------------------------------------------------


def test_a_run_ends_at_total_steps_counting_transitions_only(tiny, finish):
    trainer, results = finish(tiny(env=COUNTING, total_steps=600, transport="serial"))
    per_update = np.diff([0, *(r.env_steps for r in results)])
    assert results[-2].env_steps < 600 <= results[-1].env_steps == trainer.env_steps
    assert (per_update <= 64).all()
    assert (per_update[1:] < 64).all()  # every fragment of 8 holds an end, hence a filler


@pytest.mark.parametrize("schedule", ["constant", "linear"])
def test_the_entropy_bonus_follows_its_schedule(tiny, finish, monkeypatch, schedule):
    given, update = [], Learner.update

    def noted(self, fresh, learning_rate, scheduled):
        given.append(scheduled.get("entropy_coef", self.algorithm.entropy_coef))
        return update(self, fresh, learning_rate, scheduled)

    monkeypatch.setattr(Learner, "update", noted)
    algo = hr.A2C(entropy_coef=0.5, entropy_schedule=schedule, lr_schedule="constant")
    _, results = finish(tiny(algo=algo, transport="serial", log_interval_s=0.0))
    before = [0, *(result.env_steps for result in results[:-1])]
    left = [1 - steps / 640 for steps in before]
    assert given == pytest.approx([0.5 * (x if schedule == "linear" else 1) for x in left])
    assert len(given) > 5


def test_stop_return_ends_a_run_once_100_episodes_reach_it(tiny, finish):
    reached = tiny(env=TwoObservations, stop_return=2.0, total_steps=10**6, transport="serial")
    trainer, results = finish(reached)
    assert results[-1].episodes >= 100 > results[-2].episodes
    assert results[-1].episode_return == 2.0
    assert checkpoint.exists(trainer.run_dir)


def test_a_stop_return_that_is_not_reached_does_not_end_a_run(tiny, finish):
    _, results = finish(tiny(env=TwoObservations, stop_return=2.01, transport="serial"))
    assert results[-1].env_steps >= 640


def test_a_callback_that_returns_false_ends_the_run_and_none_does_not(tiny, tmp_path):
    seen = []

    def stop(result):
        seen.append(result.updates)
        return result.updates < 3

    config = tiny(total_steps=10**6, transport="serial")
    policy = hr.train(config, callbacks=[lambda result: None, stop, lambda result: 0])
    assert seen == [1, 2, 3]
    assert isinstance(policy, hr.Policy)
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["updates"] == 3


# -- what a run reports -------------------------------------------------------------------------


def test_a_result_has_none_until_there_is_a_value_and_its_scalars_are_finite(tiny, finish):
    kwargs = {"episode_length": 12}
    _, results = finish(tiny(env=COUNTING, env_kwargs=kwargs, transport="serial"))
    early, late = results[0], results[-1]
    for name in ("episode_return", "episode_return_min", "episode_return_max", "episode_length"):
        assert getattr(early, name) is None
        assert getattr(late, name) is not None
    assert early.episodes == 0
    assert "charts/episodic_return" not in early.scalars()
    assert late.episode_return_min <= late.episode_return <= late.episode_return_max
    assert 12 <= late.episode_length <= 14
    for result in results:
        assert all(math.isfinite(value) for value in result.scalars().values())
        assert result.updates == results.index(result) + 1
    assert (late.lag_mean, late.lag_max, late.dropped, late.restarts) == (0.0, 0, 0, 0)


@pytest.mark.draws
def test_a_run_leaves_metrics_events_a_summary_and_a_picture(tiny, tmp_path):
    results = []
    policy = hr.train(tiny(eval_episodes=3), callbacks=[results.append])
    run_dir = tmp_path / "run"
    texts = (run_dir / "metrics.jsonl").read_text().splitlines()
    lines = [json.loads(text) for text in texts]
    assert [line["env_steps"] for line in lines] == [r.env_steps for r in results]
    for line, result in zip(lines, results, strict=True):
        assert {k: v for k, v in line.items() if "/" in k} == result.scalars()
        assert not any(isinstance(v, float) and math.isnan(v) for v in line.values())

    events = EventAccumulator(str(run_dir)).Reload()
    returns = events.Scalars("charts/episodic_return")
    steps, values = read_run(run_dir).curve("env_steps", "charts/episodic_return")
    assert [event.step for event in returns] == steps
    assert [event.value for event in returns] == pytest.approx(values)
    expected = {(r.env_steps, r.episode_return) for r in results if r.episode_return is not None}
    assert expected < set(zip(steps, values, strict=True))

    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["env_steps"] == results[-1].env_steps
    assert summary["updates"] == results[-1].updates
    assert 0 < summary["seconds_to_first_update"] <= summary["seconds_total"]
    again = hr.evaluate(hr.load(run_dir), "CartPole-v1", 3)
    assert summary["evaluation"] | {"other_mode": None} == json.loads(again.to_json())
    assert again == hr.evaluate(policy, "CartPole-v1", 3)
    assert (run_dir / "curve.png").stat().st_size > 1000


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1"])
def test_a_loaded_policy_predicts_for_one_observation_and_for_a_batch(tiny, finish, env):
    trainer, _ = finish(tiny(env=env, total_steps=64, transport="serial"))
    policy = hr.load(trainer.run_dir)
    space = policy.observation_space
    batch = np.random.default_rng(0).uniform(-1, 1, (5, *space.shape)).astype(space.dtype)
    together, _ = policy.predict(batch)
    alone = np.stack([policy.predict(obs)[0] for obs in batch])
    assert together.shape == (5, *policy.action_space.shape)
    np.testing.assert_allclose(alone, together, rtol=1e-5, atol=1e-6)
    before = trainer.policy.predict(batch)[0]  # other memory may be summed in another order
    np.testing.assert_allclose(together, before, rtol=1e-5, atol=1e-6)
    assert all(policy.action_space.contains(action) for action in alone)
    single = gymnasium.make(env)
    assert space == trainer.policy.observation_space
    assert policy.action_space == single.action_space


def test_training_learns_what_the_identity_environment_shows(tiny, finish):
    algo = hr.PPO(learning_rate=3e-3)
    settings = {"env": IDENTITY, "algo": algo, "envs_per_actor": 32, "transport": "serial"}

    def solved(result) -> bool:
        return (result.episode_return or 0.0) > 7.0  # of 8; 2 by chance

    _, results = finish(tiny(total_steps=20_000, fragment_length=16, **settings), solved)
    assert solved(results[-1])


# -- lag ----------------------------------------------------------------------------------------


def test_rollouts_beyond_max_policy_lag_are_dropped_and_counted(tiny, finish, tmp_path):
    algo = hr.APPO(max_lag=3, epochs=1, minibatches=1)
    sizes = {"env": COUNTING, "algo": algo, "num_actors": 2, "total_steps": 2000}
    free = {"max_policy_lag": 10**6, "run_dir": str(tmp_path / "free")}
    free, results = finish(tiny(**sizes, batch_size=64, **free))
    assert max(r.lag_max for r in results) >= 1  # there is something to drop
    assert free.progress.dropped == 0
    strict, results = finish(tiny(**sizes, batch_size=64, max_policy_lag=0))
    assert max(r.lag_max for r in results) == 0
    dropped = [r.dropped for r in results]
    assert dropped == sorted(dropped)
    assert dropped[-1] == strict.progress.dropped == strict.summary()["dropped"] > 0
    assert strict.env_steps <= 64 * strict.updates  # dropped steps aren't training steps
    assert (
        read_jsonl(strict.run_dir / "metrics.jsonl")[-1]["lag/dropped"] == strict.progress.dropped
    )


def test_without_a_limit_the_lag_stays_within_what_the_algorithm_states(tiny, finish):
    for max_lag in (1, 2):
        algo = hr.APPO(max_lag=max_lag, epochs=1, minibatches=1)
        config = tiny(env=COUNTING, algo=algo, total_steps=1500, overwrite=True)
        _, results = finish(config)
        assert max(r.lag_max for r in results) <= max_lag

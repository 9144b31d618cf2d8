"""A task that needs memory: a cue is shown once and asked for steps later."""

from __future__ import annotations

import contextlib

import pytest
from tries import few_of
from worlds import MemoryVectorEnv

import headrace as hr

NUM_CUES, DELAY = 4, 4
MEMORYLESS_OPTIMUM = 1 / NUM_CUES  # when it is asked, every cue looks the same

ALGOS = {
    "a2c": hr.A2C(learning_rate=5e-3, entropy_coef=0.01, lam=0.95),
    "a3c": hr.A3C(learning_rate=5e-3, entropy_coef=0.01, lam=0.95, optimizer="adam"),
    "ppo": hr.PPO(learning_rate=3e-3, entropy_coef=0.01, epochs=4, minibatches=4),
    "impala": hr.IMPALA(learning_rate=5e-3, entropy_coef=0.01, epochs=2, minibatches=2),
    "appo": hr.APPO(learning_rate=5e-3, entropy_coef=0.01, epochs=2, minibatches=2),
    "impact": hr.IMPACT(learning_rate=3e-3, entropy_coef=0.01, buffer_size=2, passes=4),
}


def success(algo, core, tmp_path, seed=0, total_steps=150_000) -> float:
    kwargs = {"num_cues": NUM_CUES, "delay": DELAY}
    config = hr.Config(
        MemoryVectorEnv,
        algo,
        env_kwargs=kwargs,
        transport="serial",
        num_actors=1,
        envs_per_actor=32,
        fragment_length=16,
        total_steps=total_steps,
        stop_return=0.99,
        network=hr.Network((32,), core=core, core_size=32),
        run_dir=str(tmp_path / "run"),
        eval_episodes=0,
        log_interval_s=0.1,
        seed=seed,
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for _ in trainer:
            pass
    return hr.evaluate(trainer.policy, MemoryVectorEnv, 400, env_kwargs=kwargs).mean


FEW = [("ppo", "lstm"), ("appo", "gru")]
PAIRS = [(algo, core) for algo in ALGOS for core in ("lstm", "gru")]


@pytest.mark.parametrize(
    ("algo", "core"),  # both cores, on-policy and off-policy; make test-full has all pairs
    few_of(PAIRS, FEW),
)
def test_a_recurrent_policy_remembers_the_cue(algo, core, tmp_path):
    assert success(ALGOS[algo], core, tmp_path) >= 0.95


def test_a_feed_forward_policy_is_no_better_than_a_guess(tmp_path):
    reached = success(ALGOS["ppo"], None, tmp_path, total_steps=20_000)
    assert abs(reached - MEMORYLESS_OPTIMUM) < 0.1  # 400 episodes: standard error 0.022

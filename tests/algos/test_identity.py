"""Every algorithm solves tiny environments with a known optimum, in seconds."""

from __future__ import annotations

import contextlib

import pytest
from worlds import IdentityEnv, IdentityVectorEnv

import headrace as hr

ALGOS = {
    "a2c": hr.A2C(learning_rate=1e-2),
    "a3c": hr.A3C(learning_rate=3e-3),
    "ppo": hr.PPO(learning_rate=5e-3, epochs=4, minibatches=4),
    "impala": hr.IMPALA(learning_rate=1e-2),
    "impala-rmsprop": hr.IMPALA(learning_rate=3e-3, optimizer="rmsprop"),
    "appo": hr.APPO(learning_rate=1e-2, epochs=2, minibatches=2),
}


def final_return(algo, tmp_path, continuous: bool, env=IdentityVectorEnv, steps=60_000) -> float:
    config = hr.Config(
        env,
        algo,
        env_kwargs={"continuous": continuous},
        transport="serial",
        num_actors=1,
        envs_per_actor=16,
        fragment_length=16,
        total_steps=steps if continuous else 30_000,
        network=hr.Network((32,)),
        run_dir=str(tmp_path / "run"),
        stop_return=None if continuous else 7.7,  # of actions that are drawn
        eval_episodes=0,
        log_interval_s=0.1,
    )
    with contextlib.closing(hr.Trainer(config)) as trainer:
        for _ in trainer:
            pass
    result = hr.evaluate(trainer.policy, env, 50, env_kwargs={"continuous": continuous})
    return result.mean


@pytest.mark.parametrize("algo", ALGOS.values(), ids=ALGOS.keys())
def test_the_discrete_identity_is_solved(algo, tmp_path):
    assert final_return(algo, tmp_path, continuous=False) >= 7.9  # of 8


@pytest.mark.parametrize(
    ("algo", "steps"),
    [
        pytest.param(ALGOS["ppo"], 20_000, id="ppo"),
        pytest.param(ALGOS["a2c"], 60_000, id="a2c", marks=pytest.mark.slow),
        pytest.param(ALGOS["appo"], 60_000, id="appo", marks=pytest.mark.slow),
    ],
)
def test_the_continuous_identity_is_solved(algo, steps, tmp_path):
    assert final_return(algo, tmp_path, continuous=True, steps=steps) >= -0.25  # of 0


def test_a_plain_env_class_is_solved_too(tmp_path):
    assert final_return(ALGOS["ppo"], tmp_path, continuous=False, env=IdentityEnv) >= 7.9

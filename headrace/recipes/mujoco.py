"""MuJoCo's Hopper-v5 and HalfCheetah-v5 in a million steps."""

from __future__ import annotations

from typing import Any

from headrace.algos import IMPACT, PPO
from headrace.config import Config
from headrace.nn import Network


def hopper(algorithm: str = "ppo") -> Config:
    """Settings for Hopper-v5."""
    return _mujoco("Hopper-v5", algorithm)


def halfcheetah(algorithm: str = "ppo") -> Config:
    """Settings for HalfCheetah-v5."""
    return _mujoco("HalfCheetah-v5", algorithm)


def _mujoco(env: str, algorithm: str) -> Config:
    """IMPACT's N batches of 512 steps are together as large as PPO's one, and seen as often."""
    shared: dict[str, Any] = {
        "learning_rate": 1e-3,
        "lr_schedule": "linear",
        "gamma": 0.99,
        "lam": 0.95,
        "normalize_returns": True,
    }
    algos = {
        "ppo": PPO(epochs=10, minibatches=16, **shared),
        "impact": IMPACT(
            buffer_size=8,
            passes=10,
            clip=0.4,
            kl_coef=1.0,
            kl_target=0.04,
            value_coef=0.5,
            **shared,
        ),
    }
    return Config(
        env=env,
        algo=algos[algorithm],
        num_actors=2,
        envs_per_actor=32 if algorithm == "ppo" else 8,
        fragment_length=64,
        batch_size=4096 if algorithm == "ppo" else 512,
        total_steps=1_000_000,
        network=Network(normalize_observations=True),
    )

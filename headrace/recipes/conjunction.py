"""SSAConjunction-v0: fewer false alarms and collisions than a greedy player."""

from __future__ import annotations

from typing import Any

from headrace.algos import APPO, IMPALA, PPO
from headrace.config import Config


def conjunction(algorithm: str = "appo") -> Config:
    """Settings that beat the greedy player within minutes on two cores."""
    shared: dict[str, Any] = {
        "learning_rate": 1e-3,
        "gamma": 0.999,
        "lam": 0.95,
        "entropy_coef": 0.002,
        "reward_scale": 0.05,
        "lr_schedule": "linear",
    }
    algos = {
        "appo": APPO(**shared),
        "ppo": PPO(epochs=2, minibatches=4, **shared),
        "impala": IMPALA(**shared),
    }
    return Config(
        env="headrace/SSAConjunction-v0",
        algo=algos[algorithm],
        num_actors=2,
        envs_per_actor=128,
        fragment_length=64,
        total_steps=10_000_000,
    )

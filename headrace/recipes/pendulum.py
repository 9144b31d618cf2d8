"""Pendulum-v1, continuous torque."""

from __future__ import annotations

from headrace.algos import APPO, IMPACT, PPO
from headrace.config import Config


def pendulum(algorithm: str = "ppo") -> Config:
    """Settings for Pendulum-v1; its rewards of tens are scaled, or values would take for ever."""
    algos = {
        "ppo": PPO(learning_rate=1e-3, gamma=0.9, lam=0.95, epochs=10, minibatches=4),
        "appo": APPO(learning_rate=1e-3, gamma=0.9, lam=0.95),
        "impact": IMPACT(
            learning_rate=1e-3, gamma=0.9, lam=0.95, buffer_size=4, passes=10, reward_scale=0.1
        ),
    }
    return Config(
        env="Pendulum-v1",
        algo=algos[algorithm],
        num_actors=2,
        envs_per_actor=16,
        fragment_length=64,
        batch_size=1024 if algorithm == "impact" else None,
        total_steps=500_000,
    )

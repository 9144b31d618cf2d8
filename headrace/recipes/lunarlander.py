"""LunarLander-v3 to a mean return of 200 and more."""

from __future__ import annotations

from headrace.algos import APPO, IMPALA, PPO
from headrace.config import Config


def lunarlander(algorithm: str = "appo") -> Config:
    """Settings for envpool's or Gymnasium's (box2d) LunarLander."""
    algos = {
        "ppo": PPO(
            learning_rate=1e-3, gamma=0.999, lam=0.98, epochs=4, minibatches=8, entropy_coef=0.01
        ),
        "impala": IMPALA(learning_rate=1e-3, gamma=0.999, lam=0.98, entropy_coef=0.01),
        "appo": APPO(learning_rate=1e-3, gamma=0.999, lam=0.98, entropy_coef=0.01),
    }
    return Config(
        env="LunarLander-v3",
        algo=algos[algorithm],
        num_actors=2,
        envs_per_actor=32,
        fragment_length=64,
        total_steps=6_000_000,
    )

"""CartPole-v1 to a mean return of 475."""

from __future__ import annotations

from headrace.algos import A2C, A3C, APPO, IMPACT, IMPALA, PPO
from headrace.config import Config


def cartpole(algorithm: str = "appo") -> Config:
    """Settings that reach 475 within seconds on two cores."""
    algos = {
        "a2c": A2C(learning_rate=3e-3, gamma=0.98, lam=0.95, entropy_coef=0.01),
        "ppo": PPO(learning_rate=3e-3, epochs=4, minibatches=4),
        "impala": IMPALA(learning_rate=2e-3, gamma=0.98, lam=0.95, entropy_coef=0.01),
        "appo": APPO(learning_rate=6e-3, gamma=0.98, lam=0.95),
        "a3c": A3C(learning_rate=3e-3, optimizer="adam", gamma=0.98, lam=0.95, entropy_coef=0.01),
        "impact": IMPACT(learning_rate=1e-3, gamma=0.98, lam=0.95, buffer_size=4, passes=4),
    }
    return Config(
        env="CartPole-v1",
        algo=algos[algorithm],
        num_actors=1,
        envs_per_actor=64,
        fragment_length=32,
        total_steps=3_000_000,
        stop_return=475.0,
    )

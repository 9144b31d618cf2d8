"""Settings of IMPACT's paper (Luo et al. 2020, appendix B) for its three algorithms.

They are in the papers' literal form, with a constant learning rate and white noise.

The paper's sample batch is a rollout here, ``fragment_length`` steps of one environment; its train
batch is ``batch_size``. Clipping thresholds that the table leaves out are infinite. A KL target
with a coefficient of 0 has no effect and is left out.
"""

from __future__ import annotations

import math
from typing import Any

from headrace.algos import IMPACT, IMPALA, PPO
from headrace.config import Config
from headrace.nn import Network

_CONSTANT: Any = {"lr_schedule": "constant", "noise_color": 0.0}
_PLAIN: Any = {
    "epochs": 1, "minibatches": 1, "clip": math.inf, "lam": 1.0, **_CONSTANT
}  # fmt: skip


def _rounded_up(size: int, unit: int) -> int:
    return -(-size // unit) * unit


def _max_lag(num_actors: int, rollouts: int) -> int:
    """Return the smallest lag of at least 2 with which no actor waits; ``rollouts`` per update."""
    return max(2, -(-num_actors // rollouts) - 1)


def discrete(
    algorithm: str = "impact", env: str = "LunarLander-v3", num_actors: int = 10
) -> Config:
    """Settings of Table 1, with the default network.

    The paper has 32 workers. The default here is 10, so that PPO's 50 rollouts per update divide
    evenly among them. With other numbers, PPO's batch is rounded up, as in RLlib.
    """
    batch = _rounded_up(5000, 100 * num_actors) if algorithm == "ppo" else 500
    algos = {
        "impact": IMPACT(
            clip=0.3, entropy_coef=0.01, max_grad_norm=10.0, gamma=0.99, lam=0.995,
            learning_rate=1e-4, buffer_size=4, passes=2, kl_coef=0.0, value_coef=1.0, rho=2.0,
            max_lag=_max_lag(num_actors, 10), **_CONSTANT,
        ),
        "impala": IMPALA(
            entropy_coef=0.01, max_grad_norm=40.0, gamma=0.99, learning_rate=1e-4, value_coef=0.5,
            max_lag=_max_lag(num_actors, 10), **_PLAIN,
        ),
        "ppo": PPO(
            clip=0.1, entropy_coef=0.01, max_grad_norm=math.inf, gamma=0.99, lam=0.995,
            learning_rate=5e-5, epochs=2, minibatches=round(batch / 500), kl_coef=0.5,
            kl_target=0.01, value_coef=1.0, **_CONSTANT,
        ),
    }  # fmt: skip
    return Config(
        env=env,
        algo=algos[algorithm],
        num_actors=num_actors,
        envs_per_actor=1,
        fragment_length=100 if algorithm == "ppo" else 50,
        batch_size=batch,
        total_steps=2_000_000,
        scale_free=False,
    )


def continuous(
    algorithm: str = "impact", env: str = "HalfCheetah-v5", num_actors: int = 16
) -> Config:
    """Settings of Table 2, with footnotes 1 and 2: for HalfCheetah K = 32 and value weight 0.5.

    PPO's batch is rounded up if its 160 rollouts don't divide evenly among the actors.
    """
    cheetah = "HalfCheetah" in env
    passes = 32 if cheetah else 20
    batch = _rounded_up(163840, 1024 * num_actors) if algorithm == "ppo" else 32768
    algos = {
        "impact": IMPACT(
            clip=0.4, entropy_coef=0.0, max_grad_norm=0.5, gamma=0.995, lam=0.995,
            learning_rate=3e-4, buffer_size=16, passes=passes, kl_coef=1.0, kl_target=0.04,
            value_coef=0.5 if cheetah else 1.0, rho=2.0, max_lag=_max_lag(num_actors, 32),
            **_CONSTANT,
        ),
        "impala": IMPALA(
            entropy_coef=0.0, max_grad_norm=0.5, gamma=0.995, learning_rate=1.5e-5, value_coef=0.5,
            max_lag=_max_lag(num_actors, 32), **_PLAIN,
        ),
        "ppo": PPO(
            clip=0.3, entropy_coef=0.0, max_grad_norm=math.inf, gamma=0.99, lam=0.995,
            learning_rate=3e-4, epochs=passes, minibatches=round(batch / 32768), kl_coef=1.0,
            kl_target=0.01, value_coef=1.0, **_CONSTANT,
        ),
    }  # fmt: skip
    return Config(
        env=env,
        algo=algos[algorithm],
        num_actors=num_actors,
        envs_per_actor=1,
        fragment_length=1024,
        batch_size=batch,
        total_steps=10_000_000,
        scale_free=False,
        network=Network(hidden=(256, 256), activation="tanh"),
    )

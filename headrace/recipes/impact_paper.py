"""Settings of IMPACT's paper (Luo et al. 2020, appendix B) for its three algorithms.

They are in the papers' literal form, with a constant learning rate.

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

_CONSTANT: Any = {"lr_schedule": "constant"}
_PLAIN: Any = {
    "epochs": 1, "minibatches": 1, "clip": math.inf, "lam": 1.0, "max_lag": 2, **_CONSTANT
}  # fmt: skip


def impact_discrete(algorithm: str = "impact") -> Config:
    """Settings of Table 1 for LunarLander-v3 instead of Atari, with the default network.

    The paper's 32 workers are 10 here: PPO's 50 rollouts an update divide evenly among them.
    """
    algos = {
        "impact": IMPACT(
            clip=0.3, entropy_coef=0.01, max_grad_norm=10.0, gamma=0.99, lam=0.995,
            learning_rate=1e-4, buffer_size=4, passes=2, kl_coef=0.0, value_coef=1.0, rho=2.0,
            max_lag=2, **_CONSTANT,
        ),
        "impala": IMPALA(
            entropy_coef=0.01, max_grad_norm=40.0, gamma=0.99, learning_rate=1e-4, value_coef=0.5,
            **_PLAIN,
        ),
        "ppo": PPO(
            clip=0.1, entropy_coef=0.01, max_grad_norm=math.inf, gamma=0.99, lam=0.995,
            learning_rate=5e-5, epochs=2, minibatches=10, kl_coef=0.5, kl_target=0.01,
            value_coef=1.0, **_CONSTANT,
        ),
    }  # fmt: skip
    return Config(
        env="LunarLander-v3",
        algo=algos[algorithm],
        num_actors=10,
        envs_per_actor=1,
        fragment_length=100 if algorithm == "ppo" else 50,
        batch_size=5000 if algorithm == "ppo" else 500,
        total_steps=2_000_000,
        scale_free=False,
    )


def impact_continuous(algorithm: str = "impact", env: str = "HalfCheetah-v5") -> Config:
    """Settings of Table 2 with footnotes 1 and 2: K = 32 for HalfCheetah, value weight 0.5."""
    cheetah = env.startswith("HalfCheetah")
    passes = 32 if cheetah else 20
    algos = {
        "impact": IMPACT(
            clip=0.4, entropy_coef=0.0, max_grad_norm=0.5, gamma=0.995, lam=0.995,
            learning_rate=3e-4, buffer_size=16, passes=passes, kl_coef=1.0, kl_target=0.04,
            value_coef=0.5 if cheetah else 1.0, rho=2.0, max_lag=2, **_CONSTANT,
        ),
        "impala": IMPALA(
            entropy_coef=0.0, max_grad_norm=0.5, gamma=0.995, learning_rate=1.5e-5, value_coef=0.5,
            **_PLAIN,
        ),
        "ppo": PPO(
            clip=0.3, entropy_coef=0.0, max_grad_norm=math.inf, gamma=0.99, lam=0.995,
            learning_rate=3e-4, epochs=passes, minibatches=5, kl_coef=1.0, kl_target=0.01,
            value_coef=1.0, **_CONSTANT,
        ),
    }  # fmt: skip
    return Config(
        env=env,
        algo=algos[algorithm],
        num_actors=16,
        envs_per_actor=1,
        fragment_length=1024,
        batch_size=163840 if algorithm == "ppo" else 32768,
        total_steps=10_000_000,
        scale_free=False,
        network=Network(hidden=(256, 256), activation="tanh"),
    )

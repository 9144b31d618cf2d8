"""Literal settings of a course lesson on IMPALA and APPO in RLlib.

The tuned recipes ``satellite`` and ``conjunction`` train better. Here, the learner makes one pass
over each batch, the learning rate is constant, and rewards, values and advantages aren't
normalised. Settings that the lesson leaves out have RLlib's defaults: ``clip`` is 0.4, and
``value_coef`` 0.5.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from headrace.algos import APPO
from headrace.config import Config

_SETTINGS: dict[str, Any] = {
    "learning_rate": 5e-4,
    "lr_schedule": "constant",
    "gamma": 0.99,
    "lam": 1.0,  # RLlib's V-trace has no lambda
    "off_policy": "vtrace",
    "rho_bar": 1.0,
    "pg_rho_bar": 1.0,
    "entropy_coef": 0.01,
    "max_grad_norm": 40.0,
    "epochs": 1,
    "minibatches": 1,
    "clip": 0.4,
    "kl_limit": None,
    "value_coef": 0.5,
    "normalize_advantage": False,
    "noise_color": 0.0,
}


def satellite(algorithm: str = "appo") -> Config:
    """Settings of the complete example: 12 environments, and 240 steps per update."""
    return Config(
        env="headrace/SimpleSatellite-v0",
        algo=_appo(algorithm, max_lag=1),
        num_actors=3,
        envs_per_actor=4,
        fragment_length=20,
        batch_size=240,
        total_steps=1_000_000,
        scale_free=False,
    )


def conjunction(algorithm: str = "appo") -> Config:
    """Settings for one learner: 512 environments.

    The batch is the lesson's 4,096 steps, rounded up to six rollouts of 800 as in RLlib.
    ``max_lag`` allows 60 rollouts in flight: 32 in actors, up to 11 in the learner, and others that
    wait because actors deliver at the same time. The lesson expects a policy lag of 2 to 10.
    """
    return Config(
        env="headrace/SSAConjunction-v0",
        algo=_appo(algorithm, max_lag=9),
        env_kwargs={"n_objects": 20, "horizon": 200},
        num_actors=32,
        envs_per_actor=16,
        fragment_length=50,
        batch_size=4800,
        total_steps=50_000_000,
        scale_free=False,
    )


def conjunction_two_learners(algorithm: str = "appo") -> Config:
    """Settings for two learners: 1,024 environments.

    The batch is the lesson's 8,192 steps, rounded up to six rollouts of 800 for each learner.
    """
    one = conjunction(algorithm)
    return dataclasses.replace(one, num_learners=2, num_actors=64, batch_size=9600)


def _appo(algorithm: str, max_lag: int) -> APPO:
    return {"appo": APPO(max_lag=max_lag, **_SETTINGS)}[algorithm]

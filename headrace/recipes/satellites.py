"""The satellite games: SimpleSatellite-v0 and SSAConjunction-v0."""

from __future__ import annotations

from headrace.algos import APPO, IMPALA, PPO
from headrace.algos.common import Hyperparameters
from headrace.config import Config
from headrace.nn import Network


def satellite(algorithm: str = "appo") -> Config:
    """Settings that come within 1% of the optimum, a return of 134, in seconds on two cores.

    The entropy bonus is what it takes: without it a policy soon observes one satellite for ever,
    whatever the priorities are. A rollout is a whole episode and the step that resets.
    """
    return Config(
        env="headrace/SimpleSatellite-v0",
        algo=_algo(algorithm, minibatches=2, gamma=0.5, lam=0.95, entropy_coef=0.1),
        num_actors=1,
        envs_per_actor=128,
        fragment_length=21,
        total_steps=1_500_000,
    )


def conjunction(algorithm: str = "appo") -> Config:
    """Settings with which APPO beats the greedy player within minutes on two cores.

    It gets a higher return with a third of the false alarms. The observation tells nearly all that
    matters for the future, so that a critic is a better judge than the noisy rewards further ahead:
    ``lam`` is small. Probabilities are mostly near 0, and rarely near 1, so observations are
    normalised.
    """
    stable = {"lr_schedule": "linear", "max_grad_norm": 40.0}
    return Config(
        env="headrace/SSAConjunction-v0",
        algo=_algo(algorithm, minibatches=4, gamma=0.995, lam=0.8, entropy_coef=0.001, **stable),
        network=Network(hidden=(128, 128), normalize_observations=True),
        num_actors=2,
        envs_per_actor=128,
        fragment_length=32,
        batch_size=None if algorithm == "ppo" else 4096,
        total_steps=10_000_000,
    )


def _algo(algorithm: str, *, minibatches: int, **shared: object) -> Hyperparameters:
    """What both games need, with ``minibatches`` of PPO and more that all algorithms share."""
    both: dict = {"learning_rate": 1e-3, "reward_scale": 0.1, **shared}
    algos = {
        "appo": APPO(**both),
        "ppo": PPO(epochs=2, minibatches=minibatches, normalize_advantage=False, **both),
        "impala": IMPALA(**both),
    }
    return algos[algorithm]

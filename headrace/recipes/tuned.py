"""Tuned settings for Gymnasium's environments and for the satellite games."""

from __future__ import annotations

import math
from typing import Any

from headrace.algos import A3C, ALGORITHMS, APPO, IMPACT, IMPALA, PPO
from headrace.algos.common import Hyperparameters
from headrace.config import Config
from headrace.nn import Network


def cartpole(algorithm: str = "appo") -> Config:
    """Default settings that stop at a mean return of 475, after seconds on two cores."""
    algo = ALGORITHMS[algorithm]()
    if isinstance(algo, A3C):  # whose actors have no statistics in common to learn values by
        algo = A3C(learning_rate=3e-3, optimizer="adam", gamma=0.98, entropy_coef=0.01)
    return Config(env="CartPole-v1", algo=algo, stop_return=475.0)


def lunarlander(algorithm: str = "appo") -> Config:
    """Settings with a longer horizon: at gamma 0.99 hovering is nearly as good as landing."""
    shared: Any = {"gamma": 0.999, "lam": 0.98, "entropy_coef": 0.01}
    algos = {
        "ppo": PPO(learning_rate=1e-3, epochs=4, minibatches=8, **shared),
        "appo": APPO(learning_rate=1e-3, epochs=4, minibatches=8, **shared),
        "impact": IMPACT(**shared),
        "impala": IMPALA(epochs=4, **shared),
    }
    return Config(env="LunarLander-v3", algo=algos[algorithm])


def pendulum(algorithm: str = "appo") -> Config:
    """Settings with a short horizon, because actions have effects within ten steps."""
    shared: Any = {"gamma": 0.9, "noise_color": 0.0}
    algos = {
        "ppo": PPO(learning_rate=1e-3, **shared),
        "appo": APPO(learning_rate=1e-3, **shared),
        "impact": IMPACT(**shared),
    }
    return Config(env="Pendulum-v1", algo=algos[algorithm], total_steps=300_000)


def mountaincar_continuous(algorithm: str = "appo") -> Config:
    """Settings with pink noise. The default noise solves this task as well."""
    kinds = {"ppo": PPO, "appo": APPO, "impact": IMPACT, "impala": IMPALA}
    algo = kinds[algorithm](noise_color=1.0)
    return Config(env="MountainCarContinuous-v0", algo=algo, total_steps=500_000)


def swimmer(algorithm: str = "ppo") -> Config:
    """Settings with pink noise and a long horizon: with gamma=0.99, returns fall below the start.

    Only for PPO: with APPO, two of five seeds stay at a return of about 30.
    """
    algos = {"ppo": PPO(noise_color=1.0, gamma=0.999)}
    return Config(env="Swimmer-v5", algo=algos[algorithm], total_steps=400_000)


def hopper(algorithm: str = "appo") -> Config:
    """Settings for Hopper-v5 in a million steps."""
    return _mujoco("Hopper-v5", algorithm)


def halfcheetah(algorithm: str = "appo") -> Config:
    """Settings for HalfCheetah-v5 in a million steps."""
    return _mujoco("HalfCheetah-v5", algorithm)


def _mujoco(env: str, algorithm: str) -> Config:
    """Settings with more epochs than the defaults, because environment steps are expensive."""
    algos = {
        "ppo": PPO(learning_rate=5e-4, epochs=10, noise_color=0.0),
        "appo": APPO(learning_rate=5e-4, epochs=10, noise_color=0.0),
        "impact": IMPACT(noise_color=0.0),
    }
    return Config(env=env, algo=algos[algorithm])


def satellite(algorithm: str = "appo") -> Config:
    """Settings that come within 1% of the optimum, a return of 134, in seconds on two cores.

    As the other game's they are in the papers' literal form, in which they were measured.

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
        scale_free=False,
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
        scale_free=False,
    )


def orbital(algorithm: str = "appo") -> Config:
    """Settings for a league in the wargame: one policy against itself and its snapshots.

    Most columns are of games against itself, in which both sides are trained on; a part is of games
    against snapshots that it rarely beats, so that it doesn't forget how to. A custody lasts and
    pays step by step, so half a revolution of foresight is enough; the entropy bonus is there to
    keep the two sides from settling on an answer to only one way to play. Each snapshot that plays
    in an actor costs a forward pass at each step, for which many columns are cheaper than few.
    After two and a half minutes on two cores it beat each scripted player by 30 points of a game or
    more, 21 standard errors at least, with three seeds out of three (``docs/results/learning.md``
    has the matches and their command).
    """
    algos = {
        "appo": APPO(learning_rate=5e-4, epochs=2, minibatches=4, max_lag=2, **_ORBITAL),
        "ppo": PPO(learning_rate=5e-4, epochs=2, minibatches=8, **_ORBITAL),
        "impala": IMPALA(learning_rate=5e-4, max_lag=2, **_ONE_PASS, **_ORBITAL),
    }
    return Config(
        env="headrace/OrbitalDominance-v0",
        algo=algos[algorithm],
        network=Network(hidden=(128, 128)),
        opponents="latest:0.7,pfsp:0.3",
        num_actors=1,
        envs_per_actor=256,
        fragment_length=16 if algorithm == "ppo" else 32,
        batch_size=None if algorithm == "ppo" else 8192,
        total_steps=8_000_000,
        scale_free=False,
    )


_ONE_PASS: Any = {"epochs": 1, "minibatches": 1, "clip": math.inf}  # IMPALA as in the paper
_ORBITAL: Any = {
    "noise_color": 0.0,
    "kl_limit": None,
    "gamma": 0.99,
    "lam": 0.9,
    "entropy_coef": 0.005,
    "reward_scale": 0.1,
    "lr_schedule": "linear",
    "max_grad_norm": 1.0,
}


def _algo(algorithm: str, *, minibatches: int, **shared: object) -> Hyperparameters:
    """Create the algorithm of both satellite games, with given hyperparameters."""
    both: dict = {"learning_rate": 1e-3, "reward_scale": 0.1, "lr_schedule": "constant", **shared}
    algos = {
        "appo": APPO(epochs=1, minibatches=1, max_lag=2, **both),
        "ppo": PPO(epochs=2, minibatches=minibatches, normalize_advantage=False, **both),
        "impala": IMPALA(max_lag=2, **_ONE_PASS, **both),
    }
    return algos[algorithm]

"""Settings tuned here: for Gymnasium's own environments, and for the satellite games."""

from __future__ import annotations

from typing import Any

from headrace.algos import A2C, A3C, APPO, IMPACT, IMPALA, PPO
from headrace.algos.common import Hyperparameters
from headrace.config import Config
from headrace.nn import Network


def cartpole(algorithm: str = "appo") -> Config:
    """Settings that reach a mean return of 475 within seconds on two cores."""
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


def lunarlander(algorithm: str = "ppo") -> Config:
    """PPO lands (above 200) reliably; APPO and IMPALA are faster a step and don't learn it so far.

    With a discount below 0.999 hovering until the time limit looks as good as landing.
    """
    shared: Any = {"gamma": 0.999, "lam": 0.98, "entropy_coef": 0.01, "reward_scale": 0.05}
    algos = {
        "ppo": PPO(learning_rate=1e-3, epochs=4, minibatches=8, **shared),
        "impala": IMPALA(learning_rate=3e-3, **shared),
        "appo": APPO(learning_rate=3e-3, **shared),
    }
    return Config(
        env="LunarLander-v3",
        algo=algos[algorithm],
        num_actors=2,
        envs_per_actor=32,
        fragment_length=64,
        total_steps=1_500_000 if algorithm == "ppo" else 5_000_000,
    )


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


def hopper(algorithm: str = "ppo") -> Config:
    """Settings for Hopper-v5 in a million steps."""
    return _mujoco("Hopper-v5", algorithm)


def halfcheetah(algorithm: str = "ppo") -> Config:
    """Settings for HalfCheetah-v5 in a million steps."""
    return _mujoco("HalfCheetah-v5", algorithm)


def _mujoco(env: str, algorithm: str) -> Config:
    """IMPACT's N batches of 512 steps are together as large as PPO's one, and seen as often."""
    shared: Any = {"learning_rate": 1e-3, "lr_schedule": "linear", "normalize_returns": True}
    shared |= {"gamma": 0.99, "lam": 0.95}
    kl: Any = {"kl_coef": 1.0, "kl_target": 0.04}
    algos = {
        "ppo": PPO(epochs=10, minibatches=16, **shared),
        "impact": IMPACT(buffer_size=8, passes=10, clip=0.4, value_coef=0.5, **kl, **shared),
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

"""Cases of doctor.py: runs with one planted problem each, and healthy recipes."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gymnasium
import numpy as np

import headrace as hr

SIZES: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 16, "fragment_length": 32}


class Slow(gymnasium.Wrapper):
    """Waits at every step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.004)
        return self.env.step(action)


class Crashing(gymnasium.Wrapper):
    """Fails at random, at one of 3,000 steps on average."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 1 / 3000:
            raise RuntimeError(f"the simulator lost licence {self.np_random.integers(10**9)}")
        return self.env.step(action)


def slow_cartpole() -> gymnasium.Env:
    return Slow(gymnasium.make("CartPole-v1"))


def crashing_cartpole() -> gymnasium.Env:
    return Crashing(gymnasium.make("CartPole-v1"))


class Hidden(gymnasium.RewardWrapper):
    """A reward that is too rare to be found."""

    def reward(self, reward: Any) -> float:
        return 0.0


def hidden_reward() -> gymnasium.Env:
    return Hidden(gymnasium.make("CartPole-v1"))


def endless_pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=-1)


_CHANCE = np.random.default_rng()  # unseeded: otherwise all evaluations of a policy are equal


class Alike(gymnasium.Env):
    """Three states that look the same; the correct action in the middle one is left.

    Deterministic policies never reach the goal from two of them. Stochastic ones take some ten
    steps.
    """

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self._at, self._left = int(self.np_random.integers(3)), 60
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        forward = bool(action) != (self._at == 1)
        self._at, self._left = max(0, self._at + (1 if forward else -1)), self._left - 1
        reward = -1.0 + 0.1 * float(_CHANCE.normal())
        return np.zeros(1, np.float32), reward, self._at == 3, self._left == 0, {}


class Turning(gymnasium.Wrapper):
    """Flips all observations from its 1,500th step on, so that the trained policy becomes wrong."""

    _steps = 0

    def step(self, action: Any) -> Any:
        obs, *rest = self.env.step(action)
        self._steps += 1
        return obs if self._steps < 1500 else -obs[::-1].copy(), *rest


class Noisy(gymnasium.RewardWrapper):
    """A reward that no observation predicts."""

    def reward(self, reward: Any) -> float:
        return float(self.np_random.normal())


def turning_cartpole() -> gymnasium.Env:
    return Turning(gymnasium.make("CartPole-v1"))


def noisy_cartpole() -> gymnasium.Env:
    return Noisy(gymnasium.make("CartPole-v1"))


def slow_acrobot() -> gymnasium.Env:
    return Slow(gymnasium.make("Acrobot-v1"))


class Ill(NamedTuple):
    """A run with one planted problem."""

    illness: str  # the rule that reports it
    settings: dict[str, Any]


ILL: dict[str, Ill] = {
    "waits 4 ms a step": Ill("environment-slow", {
        "env": slow_cartpole, "algo": hr.APPO(), "engine": "sync", "num_actors": 1,
        "envs_per_actor": 8, "fragment_length": 16, "total_steps": 2048}),
    "waits 4 ms a step, PPO": Ill("environment-slow", {
        "env": slow_acrobot, "algo": hr.PPO(), "engine": "sync", "num_actors": 1,
        "envs_per_actor": 4, "fragment_length": 64, "total_steps": 3072}),
    "no time limit": Ill("endless-episodes", {
        "env": endless_pendulum, "algo": hr.PPO(), "num_actors": 1, "envs_per_actor": 4,
        "fragment_length": 128, "total_steps": 40_000}),
    "reward never found": Ill("flat-returns", dict(
        env=hidden_reward, algo=hr.PPO(), engine="sync", **SIZES, total_steps=30_000)),
    "environment crashes": Ill("actors-die", dict(
        env=crashing_cartpole, algo=hr.APPO(), engine="sync", **SIZES, total_steps=16_000)),
    "learning rate 1e-7": Ill("standstill", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=1e-7), **SIZES, total_steps=30_000)),
    "learning rate 1e-7, A2C": Ill("standstill", {
        "env": "CartPole-v1", "algo": hr.A2C(learning_rate=1e-7), "total_steps": 30_000}),
    "learning rate 1e-6, IMPALA": Ill("standstill", {
        "env": "Acrobot-v1", "algo": hr.IMPALA(learning_rate=1e-6), "total_steps": 60_000}),
    "learning rate 0.03": Ill("kl-high", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=0.03, lr_schedule="constant"), **SIZES,
        total_steps=40_000)),
    "learning rate 0.02, Pendulum": Ill("kl-high", dict(
        env="Pendulum-v1", algo=hr.APPO(learning_rate=0.02, lr_schedule="constant"), **SIZES,
        total_steps=30_000)),
    "entropy bonus 10": Ill("random-policy", {
        "env": "CartPole-v1", "algo": hr.APPO(entropy_coef=10.0), "total_steps": 60_000}),
    "entropy bonus 1, Pendulum": Ill("random-policy", dict(
        env="Pendulum-v1", algo=hr.PPO(entropy_coef=1.0), **SIZES, total_steps=30_000)),
    "literal form on Pendulum": Ill("returns-unnormalised", dict(
        env="Pendulum-v1", algo=hr.PPO(), scale_free=False, **SIZES, total_steps=40_000)),
    "gradient norm at most 0.001": Ill("gradient-clipped", dict(
        env="CartPole-v1", algo=hr.PPO(max_grad_norm=0.001), **SIZES, total_steps=40_000)),
    "gradient norm at most 0.01, Acrobot": Ill("gradient-clipped", dict(
        env="Acrobot-v1", algo=hr.APPO(max_grad_norm=0.01), **SIZES, total_steps=30_000)),
    "weights 12 updates old": Ill("lag-high", dict(
        env="CartPole-v1", algo=hr.APPO(learning_rate=1e-3, max_lag=12), weight_sync="every-8",
        **SIZES, total_steps=60_000)),
    "weights 16 updates old, Pendulum": Ill("lag-high", dict(
        env="Pendulum-v1", algo=hr.APPO(max_lag=16), **SIZES, total_steps=60_000)),
    "clip 0.002": Ill("clip-fraction", dict(
        env="CartPole-v1", algo=hr.PPO(clip=0.002), **SIZES, total_steps=40_000)),
    "clip 0.001, LunarLander": Ill("clip-fraction", {
        "env": "LunarLander-v3", "algo": hr.PPO(clip=0.001), "total_steps": 60_000}),
    "values not trained": Ill("value-blind", dict(
        env="CartPole-v1", algo=hr.PPO(value_coef=0.0), **SIZES, total_steps=40_000)),
    "nothing to predict": Ill("value-blind", dict(
        env=noisy_cartpole, engine="sync", algo=hr.PPO(), **SIZES, total_steps=30_000)),
    "states that look the same": Ill("evaluation-far", dict(
        env=Alike, engine="sync", algo=hr.PPO(), eval_interval=4_000, eval_episodes=20, **SIZES,
        total_steps=40_000)),
    "weights at most 0 updates old": Ill("rollouts-dropped", dict(
        env="CartPole-v1", algo=hr.APPO(max_lag=4), max_policy_lag=0, **SIZES,
        total_steps=40_000)),
    "one environment": Ill("learner-idle", {
        "env": "CartPole-v1", "algo": hr.IMPALA(epochs=1, minibatches=1), "num_actors": 1,
        "envs_per_actor": 1, "fragment_length": 128, "engine": "sync", "total_steps": 12_000}),
    "four actors for one learner": Ill("actors-idle", {
        "env": "CartPole-v1", "algo": hr.APPO(epochs=30), "num_actors": 4, "envs_per_actor": 8,
        "fragment_length": 32, "total_steps": 20_000}),
    "learning rate 0.1, A2C": Ill("entropy-collapsed", {
        "env": "CartPole-v1", "algo": hr.A2C(learning_rate=0.1), "total_steps": 30_000}),
    "the world turns over": Ill("return-lost", dict(
        env=turning_cartpole, engine="sync", algo=hr.PPO(), **SIZES, total_steps=48_000)),
}  # fmt: skip


def _recipe(name: str, algorithm: str, **settings: Any) -> dict[str, Any]:
    return {"recipe": (name, algorithm), **settings}


def _plain(env: str, algo: Any, total_steps: int, **settings: Any) -> dict[str, Any]:
    return {"env": env, "algo": algo, "total_steps": total_steps, "eval_episodes": 5} | settings


HEALTHY: dict[str, dict[str, Any]] = {
    "cartpole, APPO": _recipe("cartpole", "appo"),
    "cartpole, PPO": _recipe("cartpole", "ppo"),
    "cartpole, IMPALA": _recipe("cartpole", "impala"),
    "cartpole, IMPACT": _recipe("cartpole", "impact"),
    "cartpole, A2C": _recipe("cartpole", "a2c"),
    "cartpole, A3C": _recipe("cartpole", "a3c", total_steps=150_000),
    "cartpole long after it is solved": _plain("CartPole-v1", hr.PPO(), 250_000),
    "cartpole long after it is solved, IMPALA": _plain("CartPole-v1", hr.IMPALA(), 200_000),
    "cartpole for 6,000 steps": _plain("CartPole-v1", hr.PPO(entropy_coef=0.01), 6_000, **SIZES),
    "acrobot, PPO": _plain("Acrobot-v1", hr.PPO(), 100_000),
    "acrobot, APPO": _plain("Acrobot-v1", hr.APPO(), 100_000),
    "acrobot, A2C": _plain("Acrobot-v1", hr.A2C(), 60_000),
    "mountaincar, PPO": _plain("MountainCar-v0", hr.PPO(), 100_000),
    "mountaincarcontinuous, PPO": _plain("MountainCarContinuous-v0", hr.PPO(), 60_000),
    "frozenlake, PPO": _plain("FrozenLake-v1", hr.PPO(entropy_coef=0.01), 60_000),
    "lunarlander, APPO": _recipe("lunarlander", "appo", total_steps=200_000),
    "lunarlander, PPO": _recipe("lunarlander", "ppo", total_steps=200_000),
    "lunarlander for 8,000 steps": _plain("LunarLander-v3", hr.APPO(), 8_000, **SIZES),
    "pendulum, APPO": _recipe("pendulum", "appo", total_steps=200_000),
    "pendulum, PPO": _recipe("pendulum", "ppo", total_steps=200_000),
    "pendulum, IMPACT": _recipe("pendulum", "impact", total_steps=60_000),
    "hopper, APPO": _recipe("hopper", "appo", total_steps=150_000),
    "satellite, APPO": _recipe("satellite", "appo"),
    "satellite, PPO": _recipe("satellite", "ppo"),
    "conjunction, APPO": _recipe("conjunction", "appo", total_steps=500_000),
    "orbital, APPO": _recipe("orbital", "appo", total_steps=400_000),
}


def config_of(settings: dict[str, Any], **run: Any) -> hr.Config:
    """Return the config of a case in a run directory."""
    own = dict(settings)
    if "recipe" in own:
        from dataclasses import replace

        return replace(hr.recipe(*own.pop("recipe")), **own, **run)
    return hr.Config(**({"eval_episodes": 0} | own | run))

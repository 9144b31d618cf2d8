"""Runs made ill, each in one way, and recipes that are healthy."""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import gymnasium

import headrace as hr

SIZES: dict[str, Any] = {"num_actors": 1, "envs_per_actor": 16, "fragment_length": 32}


class Slow(gymnasium.Wrapper):
    """Waits at every step."""

    def step(self, action: Any) -> Any:
        time.sleep(0.004)
        return self.env.step(action)


class Crashing(gymnasium.Wrapper):
    """Fails at one step of 3,000, by chance."""

    def step(self, action: Any) -> Any:
        if self.np_random.random() < 1 / 3000:
            raise RuntimeError(f"the simulator lost licence {self.np_random.integers(10**9)}")
        return self.env.step(action)


def slow_cartpole() -> gymnasium.Env:
    return Slow(gymnasium.make("CartPole-v1"))


def crashing_cartpole() -> gymnasium.Env:
    return Crashing(gymnasium.make("CartPole-v1"))


class Hidden(gymnasium.RewardWrapper):
    """A reward that comes too seldom to be found."""

    def reward(self, reward: Any) -> float:
        return 0.0


def hidden_reward() -> gymnasium.Env:
    return Hidden(gymnasium.make("CartPole-v1"))


def endless_pendulum() -> gymnasium.Env:
    return gymnasium.make("Pendulum-v1", max_episode_steps=-1)


class Ill(NamedTuple):
    """A run that has one illness."""

    illness: str  # the name of the rule that says so
    settings: dict[str, Any]


ILL: dict[str, Ill] = {
    "waits 4 ms a step": Ill("environment-slow", {
        "env": slow_cartpole, "algo": hr.APPO(), "engine": "sync", "num_actors": 1,
        "envs_per_actor": 8,
        "fragment_length": 16, "total_steps": 2048}),
    "no time limit": Ill("endless-episodes", {
        "env": endless_pendulum, "algo": hr.PPO(), "num_actors": 1, "envs_per_actor": 1,
        "fragment_length": 512, "total_steps": 40_000}),
    "reward never found": Ill("flat-returns", dict(
        env=hidden_reward, algo=hr.PPO(), engine="sync", **SIZES, total_steps=30_000)),
    "environment crashes": Ill("actors-die", dict(
        env=crashing_cartpole, algo=hr.APPO(), engine="sync", **SIZES, total_steps=16_000)),
    "learning rate 1e-7": Ill("standstill", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=1e-7), **SIZES, total_steps=30_000)),
    "learning rate 0.03": Ill("kl-high", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=0.03, lr_schedule="constant"), **SIZES,
        total_steps=40_000)),
    "entropy bonus 10": Ill("random-policy", {
        "env": "CartPole-v1", "algo": hr.APPO(entropy_coef=10.0), "total_steps": 60_000}),
    "literal form on Pendulum": Ill("returns-unnormalised", dict(
        env="Pendulum-v1", algo=hr.PPO(), scale_free=False, **SIZES, total_steps=40_000)),
    "gradient norm at most 0.001": Ill("gradient-clipped", dict(
        env="CartPole-v1", algo=hr.PPO(max_grad_norm=0.001), **SIZES, total_steps=40_000)),
    "weights 12 updates old": Ill("lag-high", dict(
        env="CartPole-v1", algo=hr.APPO(learning_rate=1e-3, max_lag=12), weight_sync="every-8",
        **SIZES, total_steps=60_000)),
    "clip 0.002": Ill("clip-fraction", dict(
        env="CartPole-v1", algo=hr.PPO(clip=0.002), **SIZES, total_steps=40_000)),
    "values not learnt": Ill("value-blind", dict(
        env="CartPole-v1", algo=hr.PPO(value_coef=0.0), **SIZES, total_steps=40_000)),
    "plays the likeliest action of a random policy": Ill("evaluation-far", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=1e-8), eval_interval=3_000, eval_episodes=4,
        **SIZES, total_steps=40_000)),
    "weights at most 0 updates old": Ill("rollouts-dropped", dict(
        env="CartPole-v1", algo=hr.APPO(max_lag=4), max_policy_lag=0, **SIZES,
        total_steps=40_000)),
    "one environment": Ill("learner-idle", {
        "env": "CartPole-v1", "algo": hr.IMPALA(epochs=1, minibatches=1), "num_actors": 1,
        "envs_per_actor": 1,
        "fragment_length": 128, "engine": "sync", "total_steps": 12_000}),
    "four actors for one learner": Ill("actors-idle", {
        "env": "CartPole-v1", "algo": hr.APPO(epochs=30), "num_actors": 4, "envs_per_actor": 8,
        "fragment_length": 32, "total_steps": 20_000}),
    "learning rate 0.1": Ill("entropy-collapsed", dict(
        env="CartPole-v1", algo=hr.PPO(learning_rate=0.1, lr_schedule="constant"), **SIZES,
        total_steps=30_000)),
}  # fmt: skip


def _recipe(name: str, algorithm: str, **settings: Any) -> dict[str, Any]:
    return {"recipe": (name, algorithm), **settings}


HEALTHY: dict[str, dict[str, Any]] = {
    "cartpole, APPO": _recipe("cartpole", "appo"),
    "cartpole, PPO": _recipe("cartpole", "ppo"),
    "cartpole, IMPALA": _recipe("cartpole", "impala"),
    "cartpole, IMPACT": _recipe("cartpole", "impact"),
    "cartpole, A2C": _recipe("cartpole", "a2c"),
    "lunarlander, APPO": _recipe("lunarlander", "appo", total_steps=200_000),
    "lunarlander, PPO": _recipe("lunarlander", "ppo", total_steps=200_000),
    "pendulum, APPO": _recipe("pendulum", "appo", total_steps=200_000),
    "pendulum, PPO": _recipe("pendulum", "ppo", total_steps=200_000),
    "satellite, APPO": _recipe("satellite", "appo"),
    "satellite, PPO": _recipe("satellite", "ppo"),
    "hopper, APPO": _recipe("hopper", "appo", total_steps=300_000),
    "conjunction, APPO": _recipe("conjunction", "appo", total_steps=500_000),
}


def config_of(settings: dict[str, Any], **run: Any) -> hr.Config:
    """The settings of a case, with those of the run."""
    own = dict(settings)
    if "recipe" in own:
        from dataclasses import replace

        return replace(hr.recipe(*own.pop("recipe")), **own, **run)
    return hr.Config(**({"eval_episodes": 0} | own | run))

"""Estimates steps per second and the bottleneck of a run by arithmetic.

    actors    n * B / vector step          vector step = env step [* B if they compute] + inference
    learners  W * steps/s of one
    asynchronous: the slower side          synchronous: one after the other, 1 / (1/a + 1/l)

This ignores waiting for cores, weights and the network, which
``headrace/studies/plan/simulate.py`` simulates.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from headrace.errors import require, require_choice
from headrace.rundir.bottleneck import ThroughputRates

Envs = Literal["waiting", "computing"]


@dataclass(frozen=True)
class Setup:
    """Inputs of a plan.

    Raises:
        ConfigError: a number is out of range.
    """

    num_actors: int = 32  # total of all learners
    envs_per_actor: int = 16
    env_step_s: float = 0.020  # of one environment
    envs: Envs = "waiting"  # in parallel, or computing one after the other on the actor's core
    inference_s: float = 0.0  # per step of all environments of an actor: policy, sampling, storing
    learner_sps: float = 500_000.0  # steps per second that one learner can process
    num_learners: int = 1
    synchronous: bool = False  # actors and learners take turns (A2C, PPO)
    total_steps: int = 50_000_000

    def __post_init__(self) -> None:
        for name in ("num_actors", "envs_per_actor", "num_learners", "total_steps"):
            require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        require(self.learner_sps > 0, "learner_sps", self.learner_sps, "above 0")
        for name in ("env_step_s", "inference_s"):
            require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more (nearest: 0)")
        require(self.vector_step_s > 0, "env_step_s", self.env_step_s, "above 0")
        require_choice("envs", self.envs, get_args(Envs))

    @property
    def vector_step_s(self) -> float:
        """Return the seconds that an actor needs for one step in each of its environments."""
        together = 1 if self.envs == "waiting" else self.envs_per_actor
        return together * self.env_step_s + self.inference_s

    @property
    def sps_per_actor(self) -> float:
        """Return the steps per second that one actor can deliver."""
        return self.envs_per_actor / self.vector_step_s

    @property
    def rates(self) -> ThroughputRates:
        """Return the steps per second of both sides."""
        return ThroughputRates(
            self.num_actors * self.sps_per_actor,
            self.num_learners * self.learner_sps,
            self.synchronous,
        )

    @property
    def seconds(self) -> float:
        """Return the wall-clock time of the whole run."""
        return self.total_steps / self.rates.sps


def saturating_actors(setup: Setup) -> int | None:
    """Return the number of actors that saturate the learners; None if they alternate."""
    if setup.synchronous:
        return None
    exact = setup.num_learners * setup.learner_sps / setup.sps_per_actor
    return max(1, math.ceil(exact * (1 - 1e-9)))  # the tolerance keeps 32 at 32 despite rounding


def forecasts(setup: Setup) -> list[tuple[str, Setup]]:
    """Return forecasts by name: the setup itself, and variations of it."""
    n, w, step_s = setup.num_actors, setup.num_learners, setup.env_step_s
    changes: list[tuple[str, dict[str, Any]]] = [
        ("as given", {}),
        (f"{n + 1} actors", {"num_actors": n + 1}),
        (f"{2 * n} actors", {"num_actors": 2 * n}),
        (f"{2 * w} learners", {"num_learners": 2 * w}),
    ]
    for factor in (2, 10) if step_s > 0 else ():
        name = f"environments {factor} x faster ({1e3 * step_s / factor:g} ms)"
        changes.append((name, {"env_step_s": step_s / factor}))
    enough = saturating_actors(setup)
    if enough is not None and enough not in (n, n + 1, 2 * n):
        changes.append((f"{enough} actors, just enough", {"num_actors": enough}))
    turns = "side by side (asynchronous)" if setup.synchronous else "taking turns (synchronous)"
    changes.append((turns, {"synchronous": not setup.synchronous}))
    return [(name, dataclasses.replace(setup, **change)) for name, change in changes]

"""Steps per second of actors and learners, and who is the bottleneck, by arithmetic alone.

    actors    n * B / vector step          vector step = env step [* B if they compute] + inference
    learners  W * steps/s of one
    asynchronous: the slower side          synchronous: one after the other, 1 / (1/a + 1/l)

Nothing here waits for cores, weights or the network: see ``headrace/plan/simulate.py``.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal

from headrace.errors import ConfigError, require_choice

Envs = Literal["waiting", "computing"]
ENVS = ("waiting", "computing")
_EVEN = 0.05  # sides whose capacities differ by less than this are called equal


@dataclass(frozen=True)
class Setup:
    """What a plan starts from.

    Raises:
        ConfigError: a number is not above 0 (or, where that is meaningful, below it).
    """

    num_actors: int = 32
    """Actors (workers) of all learners."""
    envs_per_actor: int = 16
    """Environments that each actor steps together."""
    env_step_s: float = 0.020
    """Seconds of one step of one environment."""
    envs: Envs = "waiting"
    """Those of an actor wait side by side, or compute one after the other on its core."""
    inference_s: float = 0.0
    """Seconds per step of all environments of an actor: policy, sampling, storing."""
    learner_sps: float = 500_000.0
    """Steps per second that one learner can take in."""
    num_learners: int = 1
    """Learners (GPUs) that share out the steps."""
    synchronous: bool = False
    """Actors and learners take turns (A2C, PPO), or work at the same time."""
    total_steps: int = 50_000_000
    """Environment steps of the run."""

    def __post_init__(self) -> None:
        for name in ("num_actors", "envs_per_actor", "num_learners", "total_steps"):
            _require(getattr(self, name) >= 1, name, getattr(self, name), "1 or more (nearest: 1)")
        _require(self.learner_sps > 0, "learner_sps", self.learner_sps, "above 0")
        for name in ("env_step_s", "inference_s"):
            _require(getattr(self, name) >= 0, name, getattr(self, name), "0 or more (nearest: 0)")
        _require(self.vector_step_s > 0, "env_step_s", self.env_step_s, "above 0")
        require_choice("envs", self.envs, ENVS)

    @property
    def vector_step_s(self) -> float:
        """Seconds in which an actor takes one step in each of its environments."""
        together = 1 if self.envs == "waiting" else self.envs_per_actor
        return together * self.env_step_s + self.inference_s

    @property
    def sps_per_actor(self) -> float:
        """Steps per second that one actor can deliver."""
        return self.envs_per_actor / self.vector_step_s

    @property
    def rates(self) -> Rates:
        """What both sides can do."""
        return Rates(
            self.num_actors * self.sps_per_actor,
            self.num_learners * self.learner_sps,
            self.synchronous,
        )


def _require(condition: bool, name: str, value: object, valid: str) -> None:
    if not condition:
        raise ConfigError(f"{name}={value!r} must be {valid}")


@dataclass(frozen=True)
class Rates:
    """What actors and learners can do, each if it never waited, in steps per second."""

    actors_sps: float
    learners_sps: float
    synchronous: bool

    @property
    def sps(self) -> float:
        """Steps per second of the whole."""
        if self.synchronous:
            return 1.0 / (1.0 / self.actors_sps + 1.0 / self.learners_sps)
        return min(self.actors_sps, self.learners_sps)

    @property
    def bottleneck(self) -> Literal["actors", "learners", "both"]:
        """The side whose speed decides; both where they hardly differ."""
        slower, faster = sorted((self.actors_sps, self.learners_sps))
        if faster - slower < _EVEN * faster:
            return "both"
        return "actors" if self.actors_sps == slower else "learners"

    @property
    def utilisation_actors(self) -> float:
        """Share of their time in which actors act."""
        return self.sps / self.actors_sps

    @property
    def utilisation_learners(self) -> float:
        """Share of their time in which learners compute."""
        return self.sps / self.learners_sps


def saturating_actors(setup: Setup) -> int | None:
    """Actors from which on the learners are the bottleneck; None: they take turns, so never."""
    if setup.synchronous:
        return None
    exact = setup.num_learners * setup.learner_sps / setup.sps_per_actor
    return max(1, math.ceil(exact * (1 - 1e-9)))  # 32 stays 32 whatever its last bit


@dataclass(frozen=True)
class Forecast:
    """A setup, changed in one respect or not, and what comes of it."""

    name: str
    setup: Setup

    @property
    def sps(self) -> float:
        """Steps per second."""
        return self.setup.rates.sps

    @property
    def seconds(self) -> float:
        """Wall-clock time of the whole run."""
        return self.setup.total_steps / self.sps

    @property
    def bottleneck(self) -> str:
        """Who decides: actors, learners or both."""
        return self.setup.rates.bottleneck


def forecasts(setup: Setup) -> list[Forecast]:
    """The setup itself, then with one more and twice the actors, twice the learners, and faster
    environments, with as many actors as the learners can take in (asynchronous only), and with
    actors and learners that take turns, or don't.
    """
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
    return [Forecast(name, dataclasses.replace(setup, **change)) for name, change in changes]


@dataclass(frozen=True)
class Spent:
    """What a run of several learners and their actors took, all sums over learners and rollouts."""

    env_steps: int
    num_rollouts: int
    acting_s: float  # filling these rollouts
    learning_s: float  # computing, publishing and exchanging
    num_actors: int
    num_learners: int
    synchronous: bool
    one_process: bool = False  # of a learner and all its actors, which take turns with it

    @property
    def rates(self) -> Rates | None:
        """What both sides could have done had they never waited; None: not known."""
        if min(self.env_steps, self.num_rollouts) < 1 or min(self.acting_s, self.learning_s) <= 0:
            return None
        num_actors = self.num_learners if self.one_process else self.num_actors
        return Rates(
            num_actors * self.env_steps / self.acting_s,
            self.num_learners * self.env_steps / self.learning_s,
            self.synchronous or self.one_process,
        )


def compare(spent: Spent, measured_sps: float) -> dict[str, float | str] | None:
    """What ``summary.json`` says of a run's speed; None where it is not known.

    Args:
        measured_sps: steps per second of the run.

    Returns:
        steps per second planned and measured, of each side, the bottleneck, and one line.
    """
    rates = spent.rates
    if rates is None or measured_sps <= 0:
        return None
    return {
        "planned_sps": rates.sps,
        "measured_sps": measured_sps,
        "actors_sps": rates.actors_sps,
        "learners_sps": rates.learners_sps,
        "bottleneck": rates.bottleneck,
        "line": _line(rates, measured_sps, spent),
    }


def _line(rates: Rates, measured_sps: float, spent: Spent) -> str:
    several = spent.num_learners > 1
    learner = "learners" if several else "learner"
    who = {
        "actors": "actors are the bottleneck",
        "learners": f"the {learner} {'are' if several else 'is'} the bottleneck",
        "both": f"actors and {learner} are equally fast",
    }[rates.bottleneck]
    more = "another actor (on a free core) or a faster environment"
    if spent.one_process:
        more = "actors in processes of their own (transport=shm) or a faster environment"
    less = f"a faster {learner.removesuffix('s')} or a smaller network"
    if rates.bottleneck == "both":
        advice = f"only both together would help: {more}, and {less}"
        if rates.synchronous:
            advice = f"either would help: {more}, or {less}"
    else:
        helps, not_helps = (more, less) if rates.bottleneck == "actors" else (less, more)
        rest = f"{not_helps} only a little" if rates.synchronous else f"{not_helps} would not"
        advice = f"{helps} would help, {rest}"
    turns = "taking turns, " if rates.synchronous else ""
    return f"{turns}{who}: {measured_sps:,.0f} of {rates.sps:,.0f} steps/s planned; {advice}"

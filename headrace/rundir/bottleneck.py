"""Finds the bottleneck of a run, actors or learners, from their capacities without waiting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.actors.sizes import Sizes

_EVEN = 0.05  # capacities that differ by less count as equal
_WAITING = 0.15  # share of time above which actors or learners count as waiting


@dataclass(frozen=True)
class ThroughputRates:
    """Capacities of actors and learners in steps per second, as if neither ever waited."""

    actors_sps: float
    learners_sps: float
    synchronous: bool

    @property
    def sps(self) -> float:
        """Steps per second of actors and learners together."""
        if self.synchronous:
            return 1.0 / (1.0 / self.actors_sps + 1.0 / self.learners_sps)
        return min(self.actors_sps, self.learners_sps)

    @property
    def bottleneck(self) -> Literal["actors", "learners", "both"]:
        """The slower side; "both" if they hardly differ."""
        slower, faster = sorted((self.actors_sps, self.learners_sps))
        if faster - slower < _EVEN * faster:
            return "both"
        return "actors" if self.actors_sps == slower else "learners"

    @property
    def utilisation_actors(self) -> float:
        """Share of time in which actors act."""
        return self.sps / self.actors_sps

    @property
    def utilisation_learners(self) -> float:
        """Share of time in which learners compute."""
        return self.sps / self.learners_sps


@dataclass(frozen=True)
class ActorsAhead:
    """Actors that may act while their learner computes, within ``max_lag`` batches."""

    max_lag: int
    sizes: Sizes  # of one learner
    num_learners: int = 1
    num_tasks: int = 1

    @property
    def num_acting(self) -> int:
        """Largest number of actors that act while their learner computes."""
        rollouts = self.max_lag * (self.sizes.batch_steps // self.sizes.rollout_steps)
        return min(self.sizes.num_actors, rollouts)

    @property
    def batch_size(self) -> int:
        """Batch size of all learners with which all actors may act meanwhile."""
        rollouts = -(-self.sizes.num_actors // self.max_lag)
        rollouts = -(-rollouts // self.num_tasks) * self.num_tasks
        return self.num_learners * rollouts * self.sizes.rollout_steps

    @property
    def line(self) -> str:
        """Description of the limit on actors, and of settings that relax it."""
        sizes = self.sizes
        lag = -(-sizes.num_actors * sizes.rollout_steps // sizes.batch_steps)
        each = "of each learner may act while it" if self.num_learners > 1 else "may act while it"
        return (
            f"with max_lag={self.max_lag}, {self.num_acting} of {sizes.num_actors} actors {each} "
            f"computes; if cores are free, batch_size={self.batch_size}, max_lag={lag} (for all "
            "of them) or a shorter fragment_length would help, another actor hardly"
        )


@dataclass(frozen=True)
class RunTimes:
    """Times spent by learners and actors, summed over learners and rollouts."""

    env_steps: int
    num_rollouts: int
    acting_s: float  # filling these rollouts
    learning_s: float  # computing, publishing and all-reduce
    num_actors: int
    num_learners: int
    synchronous: bool
    one_process: bool = False  # a learner and its actors share a process and alternate
    waiting_s: float = 0.0  # actors waiting for slots of these rollouts
    idle_s: float = 0.0  # learners waiting for rollouts
    ahead: ActorsAhead | None = None  # None: unknown
    free_cores: int | None = None  # cores that neither actors nor learners use; None: unknown
    for_waits: str | None = None  # setting that helps if environments mostly wait; None: they don't

    @property
    def rates(self) -> ThroughputRates | None:
        """Capacities of both sides; None if unknown."""
        if min(self.env_steps, self.num_rollouts) < 1 or min(self.acting_s, self.learning_s) <= 0:
            return None
        num_actors = self.num_learners if self.one_process else self.num_actors
        return ThroughputRates(
            num_actors * self.env_steps / self.acting_s,
            self.num_learners * self.env_steps / self.learning_s,
            self.synchronous or self.one_process,
        )

    @property
    def held_by(self) -> ActorsAhead | None:
        """The limit that makes actors and learner wait for each other; None if they don't."""
        ahead, asynchronous = self.ahead, not (self.synchronous or self.one_process)
        if ahead is None or not asynchronous or ahead.num_acting == ahead.sizes.num_actors:
            return None
        waiting = self.waiting_s > _WAITING * (self.waiting_s + self.acting_s)
        idle = self.idle_s > _WAITING * (self.idle_s + self.learning_s)
        return ahead if waiting and idle else None


def compare(spent: RunTimes, measured_sps: float) -> dict[str, float | str] | None:
    """Return the speed section of ``summary.json``; None if unknown."""
    rates = spent.rates
    if rates is None or measured_sps <= 0:
        return None
    return {
        "planned_sps": rates.sps,
        "measured_sps": measured_sps,
        "actors_sps": rates.actors_sps,
        "learners_sps": rates.learners_sps,
        "bottleneck": rates.bottleneck if spent.held_by is None else "max_lag",
        "line": _line(rates, measured_sps, spent),
    }


def _line(rates: ThroughputRates, measured_sps: float, spent: RunTimes) -> str:
    speed = f"{measured_sps:,.0f} of {rates.sps:,.0f} steps/s planned"
    if measured_sps > rates.sps:  # both sides took longer in total than the run lasted
        speed = f"{measured_sps:,.0f} steps/s, planned {rates.sps:,.0f}"
    if spent.held_by is not None:
        return f"actors and learner wait for each other: {speed}; {spent.held_by.line}"
    several = spent.num_learners > 1
    learner = "learners" if several else "learner"
    bottleneck = {
        "actors": "actors are the bottleneck",
        "learners": f"the {learner} {'are' if several else 'is'} the bottleneck",
        "both": f"actors and {learner} are equally fast",
    }[rates.bottleneck]
    more = "another actor (on a free core) or a faster environment"
    if spent.free_cores is not None and spent.free_cores < 1:
        more = "more cores for another actor, or a faster environment,"
    if spent.one_process:
        more = "actors in separate processes (transport=shm) or a faster environment"
    if spent.for_waits is not None:
        more = f"{spent.for_waits} (the environments mostly wait)"
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
    return f"{turns}{bottleneck}: {speed}; {advice}"

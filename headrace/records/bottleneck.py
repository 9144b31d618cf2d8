"""Who holds a run up, actors or learners: from what both could do had they never waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headrace.acting.sizes import Sizes

_EVEN = 0.05  # sides whose capacities differ by less than this are called equal
_HELD = 0.85  # of what both sides could do, below which something else held them up


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
    max_lag: int = 1
    sizes: Sizes | None = None  # of one learner; None: not known

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

    @property
    def num_acting(self) -> int:
        """Actors of a learner, at most, that may act while it computes."""
        if self.sizes is None:
            return self.num_actors
        rollouts = self.max_lag * (self.sizes.batch_steps // self.sizes.rollout_steps)
        return min(self.sizes.num_actors, rollouts)

    def is_held(self, rates: Rates, measured_sps: float) -> bool:
        """Whether actors wait for the learner, and it for them, as ``max_lag`` wants it."""
        asks = self.sizes is not None and self.num_acting < self.sizes.num_actors
        return asks and not rates.synchronous and measured_sps < _HELD * rates.sps


def compare(spent: Spent, measured_sps: float) -> dict[str, float | str] | None:
    """What ``summary.json`` says of a run's speed; None where it is not known."""
    rates = spent.rates
    if rates is None or measured_sps <= 0:
        return None
    return {
        "planned_sps": rates.sps,
        "measured_sps": measured_sps,
        "actors_sps": rates.actors_sps,
        "learners_sps": rates.learners_sps,
        "bottleneck": "max_lag" if spent.is_held(rates, measured_sps) else rates.bottleneck,
        "line": _line(rates, measured_sps, spent),
    }


def _held_line(rates: Rates, measured_sps: float, spent: Spent) -> str:
    sizes = spent.sizes
    assert sizes is not None
    actors, steps = sizes.num_actors, sizes.rollout_steps
    size = -(-actors // spent.max_lag) * steps
    lag = -(-actors * steps // sizes.batch_steps)
    return (
        f"actors and learner wait for each other: {measured_sps:,.0f} of {rates.sps:,.0f} steps/s "
        f"planned; with max_lag={spent.max_lag} {spent.num_acting} of {actors} actors may act "
        f"while the learner computes; if cores are free, batch_size={size} or max_lag={lag} for "
        "all of them or a shorter fragment_length would help, another actor would not"
    )


def _line(rates: Rates, measured_sps: float, spent: Spent) -> str:
    if spent.is_held(rates, measured_sps):
        return _held_line(rates, measured_sps, spent)
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
    speed = f"{measured_sps:,.0f} of {rates.sps:,.0f} steps/s planned"
    if measured_sps > rates.sps:  # of what both sides took there is more than this time holds
        speed = f"{measured_sps:,.0f} steps/s, planned {rates.sps:,.0f}"
    return f"{turns}{who}: {speed}; {advice}"

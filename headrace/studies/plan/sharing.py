"""Resources shared by jobs of a simulation: cores of a machine, bandwidth of a network.

All jobs of a kind go on at one speed, which depends on how many of each kind there are. So each
kind has a clock of work done, a job ends when the clock reaches what it read at its start plus the
job's work, and one event is scheduled for the earliest end of all: a change of speed costs the same
whether there are two jobs or 10,000.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simpy import Environment, Event

LEARNER_WEIGHT, ACTOR_WEIGHT = 1024.0, 110.0  # of Linux's scheduler at niceness 0 and 10
_SOON = 1e-12  # of the time that has passed; what ends so soon ends now, as rounding demands

Counts = tuple[int, ...]
Speeds = Callable[[Counts], Sequence[float]]


class ResourceSharing:
    """Jobs of several kinds that slow each other down.

    Args:
        num_kinds: jobs are of kind 0 ... num_kinds - 1.
        speeds: seconds of work per second of each kind, all above 0, given how many jobs of each
            kind there are. It must be a function of these counts alone.
    """

    def __init__(self, env: Environment, num_kinds: int, speeds: Speeds) -> None:
        self._env, self._speeds = env, speeds
        self._known: dict[Counts, Sequence[float]] = {}
        self._clocks = [0.0] * num_kinds
        self._jobs: list[list[tuple[float, int, Event]]] = [[] for _ in range(num_kinds)]
        self._now, self._number = env.now, 0
        self._alarm_at = math.inf  # when the next alarm rings; later ones are stale
        self._rates: Sequence[float] = [1.0] * num_kinds

    def run(self, kind: int, work: float) -> Event:
        """Start a job; returns the event of its end.

        Args:
            work: seconds that it takes alone (or whatever unit the speeds have), 0 or more.
        """
        self._advance()
        done = Event(self._env)
        self._number += 1
        heapq.heappush(self._jobs[kind], (self._clocks[kind] + work, self._number, done))
        self._schedule()
        return done

    def _advance(self) -> None:
        passed = self._env.now - self._now
        self._now = self._env.now
        for kind, rate in enumerate(self._rates):
            self._clocks[kind] += passed * rate

    def _schedule(self) -> None:
        counts = tuple(map(len, self._jobs))
        if counts not in self._known:
            self._known[counts] = self._speeds(counts)
        self._rates = rates = self._known[counts]
        left = math.inf
        for jobs, clock, rate in zip(self._jobs, self._clocks, rates, strict=True):
            if jobs:
                left = min(left, max(0.0, (jobs[0][0] - clock) / rate))
        if self._now + left < self._alarm_at:  # one that rings too early sets the next
            self._alarm_at = self._now + left
            self._env.timeout(left, self._alarm_at).callbacks.append(self._ring)

    def _ring(self, alarm: Event) -> None:
        if alarm.value != self._alarm_at:
            return  # an earlier one was set since
        self._alarm_at = math.inf
        self._advance()
        soon = _SOON * (1.0 + self._now)
        for jobs, clock, rate in zip(self._jobs, self._clocks, self._rates, strict=True):
            while jobs and jobs[0][0] - clock <= soon * rate:
                heapq.heappop(jobs)[2].succeed()
        self._schedule()


@dataclass(frozen=True)
class Cores:
    """Speeds of actors (kind 0) and a learner (kind 1) on the cores of one machine.

    Where there are cores for all, everybody has what it wants. Otherwise the learner goes first:
    actors run at a lower priority and take what it leaves, and at least what the scheduler's
    weights give them.
    """

    cores: float  # inf: one for everybody
    actor_cores: float  # that an actor keeps busy while it acts; below 1 where environments wait
    learner_cores: float  # that a learner keeps busy during an update
    actor_crowding: float = 1.0  # time of acting with all cores busy, relative to alone
    learner_crowding: float = 1.0  # time of an update likewise

    def __call__(self, counts: Counts) -> tuple[float, float]:
        """Return the speeds of one actor and of the learner; ``counts``: numbers of both."""
        num_actors, num_learners = counts
        actors, learner = num_actors * self.actor_cores, num_learners * self.learner_cores
        busy = actors + learner
        speed_actor = speed_learner = 1.0
        if busy > self.cores:
            weights = LEARNER_WEIGHT * learner, ACTOR_WEIGHT * actors
            share = self.cores * weights[0] / sum(weights)
            given = min(learner, max(share, self.cores - actors))
            speed_learner = given / learner if learner else 1.0
            speed_actor = (self.cores - given) / actors if actors else 1.0
        own = 1.0 if num_learners == 0 else self.learner_cores
        return (
            speed_actor / self._slower(busy - 1.0, 1.0, self.actor_crowding, self.actor_cores),
            speed_learner / self._slower(busy - own, own, self.learner_crowding, 1.0),
        )

    def _slower(self, others: float, own: float, crowding: float, share: float) -> float:
        """Return the slowdown by other busy cores; ``share`` is the compute share.

        Linear in the other busy cores, up to all of the machine's.
        """
        room = self.cores - own
        if math.isinf(room) or room <= 0 or others <= 0:
            return 1.0
        return 1.0 + share * (crowding - 1.0) * min(1.0, others / room)


def bandwidth(bytes_per_s: float) -> Speeds:
    """Return the bytes per second of each transfer over an equally shared network."""

    def speeds(counts: Counts) -> tuple[float]:
        return (bytes_per_s / max(1, counts[0]),)

    return speeds

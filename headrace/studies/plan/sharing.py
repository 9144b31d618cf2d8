"""Resources shared by jobs of a simulation: cores of a machine, bandwidth of a network.

All jobs of a kind run at one speed, which depends on the number of jobs of each kind. Each kind
has a clock of work done. A job ends when the clock reaches its reading at the start plus the job's
work. One event is scheduled for the earliest end of all jobs, so a change of speed costs the same
with two jobs as with 10,000.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from simpy import Environment, Event

LEARNER_WEIGHT, ACTOR_WEIGHT = 1024.0, 110.0  # weights of Linux's scheduler at niceness 0 and 10
_SOON = 1e-12  # relative to the time; ends within it count as now, because of rounding

Counts = tuple[int, ...]
Speeds = Callable[[Counts], Sequence[float]]


class ResourceSharing:
    """Jobs of several kinds that slow each other down.

    Args:
        num_kinds: number of kinds; jobs are of kind 0 ... num_kinds - 1.
        speeds: function from the number of jobs of each kind to the seconds of work per second of
            each kind, all above 0.
    """

    def __init__(self, env: Environment, num_kinds: int, speeds: Speeds) -> None:
        self._env, self._speeds = env, speeds
        self._speeds_by_counts: dict[Counts, Sequence[float]] = {}
        self._clocks = [0.0] * num_kinds
        self._jobs: list[list[tuple[float, int, Event]]] = [[] for _ in range(num_kinds)]
        self._now, self._number = env.now, 0
        self._alarm_at = math.inf  # time of the next alarm; later alarms are stale
        self._rates: Sequence[float] = [1.0] * num_kinds

    def run(self, kind: int, work: float) -> Event:
        """Start a job and return the event of its end.

        Args:
            work: seconds of the job alone (or another unit, as the speeds have it), 0 or more.
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
        if counts not in self._speeds_by_counts:
            self._speeds_by_counts[counts] = self._speeds(counts)
        self._rates = rates = self._speeds_by_counts[counts]
        left = math.inf
        for jobs, clock, rate in zip(self._jobs, self._clocks, rates, strict=True):
            if jobs:
                left = min(left, max(0.0, (jobs[0][0] - clock) / rate))
        if self._now + left < self._alarm_at:  # an alarm that is too early sets the next
            self._alarm_at = self._now + left
            self._env.timeout(left, self._alarm_at).callbacks.append(self._ring)

    def _ring(self, alarm: Event) -> None:
        if alarm.value != self._alarm_at:
            return  # an earlier alarm was set meanwhile
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

    With enough cores all run at full speed. Otherwise the learner has priority: actors run at a
    lower priority and get the remaining cores, and at least the share of their scheduler weights.
    """

    cores: float  # inf: enough for all
    actor_cores: float  # busy cores of an acting actor; below 1 if environments wait
    learner_cores: float  # busy cores of a learner during an update
    actor_crowding: float = 1.0  # time of acting with all cores busy, relative to alone
    learner_crowding: float = 1.0  # likewise for an update

    def __call__(self, counts: Counts) -> tuple[float, float]:
        """Return the speeds of one actor and of the learner; ``counts``: numbers of both."""
        num_actors, num_learners = counts
        actors, learner = num_actors * self.actor_cores, num_learners * self.learner_cores
        busy = actors + learner
        speed_actor = speed_learner = 1.0
        if busy > self.cores:
            weights = LEARNER_WEIGHT * learner, ACTOR_WEIGHT * actors
            share = self.cores * weights[0] / sum(weights)
            granted = min(learner, max(share, self.cores - actors))
            speed_learner = granted / learner if learner else 1.0
            speed_actor = (self.cores - granted) / actors if actors else 1.0
        of_learner = 1.0 if num_learners == 0 else self.learner_cores
        return (
            speed_actor / self._slower(busy - 1.0, 1.0, self.actor_crowding, self.actor_cores),
            speed_learner / self._slower(busy - of_learner, of_learner, self.learner_crowding, 1.0),
        )

    def _slower(self, others: float, used: float, crowding: float, share: float) -> float:
        """Return the slowdown by other busy cores; ``share`` is the compute share.

        It is linear in the number of other busy cores, up to all cores of the machine.
        """
        room = self.cores - used
        if math.isinf(room) or room <= 0 or others <= 0:
            return 1.0
        return 1.0 + share * (crowding - 1.0) * min(1.0, others / room)


def bandwidth(bytes_per_s: float) -> Speeds:
    """Return the bytes per second of each transfer over an equally shared network."""

    def speeds(counts: Counts) -> tuple[float]:
        return (bytes_per_s / max(1, counts[0]),)

    return speeds

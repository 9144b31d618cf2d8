"""Discrete-event simulation of a run: actors, owned slots, queue, learner, weights.

    actor    free slot ──► weights, if they are due ──► act ──► transfer ──► commit
    learner  R rollouts (FIFO by commit; synchronous: k of each actor) ──► update ──► publish ──►
             release

A rollout is one job rather than one job per step, so 10,000 actors take seconds. The rules are
those of ``transport/slots.py`` (waiting), ``actors/weight_sync.py`` (fetching weights, through its
own ``Follower``) and ``trainer/batch_collector.py`` (dropped rollouts).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from simpy import Environment, Event

from headrace.actors.weight_sync import Follower
from headrace.errors import require
from headrace.studies.plan.scenario import Outcome, Scenario
from headrace.studies.plan.sharing import ResourceSharing, bandwidth

_ACTOR, _LEARNER = 0, 1
_MAX_POINTS = 2000  # points of the queue depth kept for a plot
_WARM_UP = 0.2  # share of updates that metrics exclude

Process = Generator[Event, Any, None]


@dataclass
class _Actor:
    """State of a simulated actor."""

    number: int
    free: int
    follower: Follower
    granted: Event | None = None  # event of the next slot, while it has none
    notes: deque[tuple[int, float]] = field(default_factory=deque)  # drift in returned slots
    acting_s: float = 0.0
    waiting_s: float = 0.0


class _Run:
    """Simulated run: actor processes, a learner process and their queue."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario, self.env = scenario, Environment()
        self._rng = np.random.default_rng(scenario.seed)
        self._cores = ResourceSharing(self.env, 2, scenario.cores)
        rate = scenario.bytes_per_s
        self._network = None if rate is None else ResourceSharing(self.env, 1, bandwidth(rate))
        self.actors = [
            _Actor(i, scenario.slots_per_actor, Follower(scenario.sync))
            for i in range(scenario.num_actors)
        ]
        slots, credits = scenario.num_actors * scenario.slots_per_actor, scenario.num_credits
        self._credits = slots if credits is None else credits
        self._asking: deque[_Actor] = deque()  # with a free slot but no credit, in order
        self._pending: deque[tuple[_Actor, int]] = (
            deque()
        )  # committed rollouts: actor, acting version
        self._news: Event | None = None  # event that the learner waits for
        self._num_missing = 0
        self.outcome = Outcome()
        self.learning_s = 0.0
        self._since = 0.0  # start time of the present queue depth

    # -- the actors --------------------------------------------------------------------------------

    def act(self, actor: _Actor) -> Process:
        """Simulate an actor."""
        env, scenario = self.env, self.scenario
        slower = scenario.straggler_factor if actor.number < scenario.stragglers else 1.0
        while True:
            start = env.now
            if actor.free and self._credits:
                self._open(actor)
            else:
                yield self._ask(actor)
            actor.waiting_s += env.now - start
            start = env.now
            yield from self._pull(actor)
            work = scenario.acting.draw(self._rng) * slower
            if scenario.mtbf_s is not None:
                while (until := self._rng.exponential(scenario.mtbf_s)) < work:
                    yield self._cores.run(_ACTOR, until)
                    yield from self._restart(actor)
            yield self._cores.run(_ACTOR, work)
            yield from self._transfer(scenario.rollout_bytes)
            actor.acting_s += env.now - start
            self._commit(actor)

    def _restart(self, actor: _Actor) -> Process:
        """Lose the rollout; a replacement starts with the same slot and no weights."""
        self.outcome.crashes += 1
        yield self.env.timeout(self.scenario.restart_s)
        actor.follower = Follower(self.scenario.sync)
        yield from self._pull(actor)

    def _pull(self, actor: _Actor) -> Process:
        """Fetch weights if the actor's rule requires it."""
        follower = actor.follower
        if actor.notes:
            follower.note(*actor.notes.popleft())
        version = self.outcome.updates
        if not follower.wants(version):
            return
        if self.scenario.pull_s > 0:
            yield self._cores.run(_ACTOR, self.scenario.pull_s)
        yield from self._transfer(self.scenario.weights_bytes)
        follower.fetched(version)
        self.outcome.pulls += 1

    def _transfer(self, num_bytes: float) -> Process:
        """Wait for a transfer over the network."""
        if self._network is not None and num_bytes > 0:
            yield self._network.run(0, num_bytes)

    def _commit(self, actor: _Actor) -> None:
        """Add a rollout to the queue, and wake the learner if it has enough."""
        self._note_depth()
        self._pending.append((actor, actor.follower.version))
        self.outcome.committed += 1
        if self._news is not None and len(self._pending) >= self._num_missing:
            self._news.succeed()
            self._news = None

    # -- the learner -------------------------------------------------------------------------------

    def learn(self, num_updates: int) -> Process:
        """Simulate the learner for a number of updates."""
        scenario, outcome = self.scenario, self.outcome
        for _ in range(num_updates):
            batch: list[tuple[_Actor, int]] = []
            while len(batch) < scenario.rollouts_per_update:
                self._num_missing = scenario.rollouts_per_update - len(batch)
                if len(self._pending) < self._num_missing:
                    self._news = Event(self.env)
                    yield self._news
                batch += self._take(self._num_missing)
            start = self.env.now
            yield self._cores.run(_LEARNER, scenario.update.draw(self._rng))
            self.learning_s += self.env.now - start
            for actor, version in batch:
                outcome.trained += 1
                outcome.lags[outcome.updates - version] += 1
                if scenario.sync.on_drift:
                    actor.notes.append((version, (outcome.updates - version) * scenario.drift))
            outcome.updates += 1
            for actor, _ in batch:
                self._release(actor)

    def _take(self, count: int) -> list[tuple[_Actor, int]]:
        """Take ``count`` rollouts in order of commit, and drop those that are too old."""
        self._note_depth()
        oldest, kept = self.scenario.max_policy_lag, []
        for actor, version in [self._pending.popleft() for _ in range(count)]:
            if oldest is not None and self.outcome.updates - version > oldest:
                self.outcome.dropped += 1
                self._release(actor)
            else:
                kept.append((actor, version))
        return kept

    def _release(self, actor: _Actor) -> None:
        """Return a slot and its credit, and grant one to the first waiting actor."""
        actor.free += 1
        self._credits += 1
        if actor.free == 1 and actor.granted is not None:
            self._asking.append(actor)
        if self._asking:
            first = self._asking.popleft()
            self._open(first)
            assert first.granted is not None
            first.granted.succeed()
            first.granted = None

    def _ask(self, actor: _Actor) -> Event:
        """Return the event of the next slot; the longest waiting actor gets the next credit."""
        actor.granted = Event(self.env)
        if actor.free:
            self._asking.append(actor)
        return actor.granted

    def _open(self, actor: _Actor) -> None:
        """Take a free slot and a credit."""
        actor.free -= 1
        self._credits -= 1

    # -- metrics -----------------------------------------------------------------------------------

    def _note_depth(self) -> None:
        """Record the queue's depth before it changes."""
        depth, outcome = len(self._pending), self.outcome
        outcome.depths[depth] = outcome.depths.get(depth, 0.0) + self.env.now - self._since
        self._since = self.env.now
        outcome.depth_line.append((self.env.now, depth))

    def forget(self) -> None:
        """Discard the counts of the warm-up."""
        self._note_depth()
        self.learning_s = 0.0
        self.outcome.lags.clear()
        self.outcome.depths.clear()
        for actor in self.actors:
            actor.acting_s = actor.waiting_s = 0.0


def simulate(scenario: Scenario, num_updates: int = 200) -> Outcome:
    """Run a scenario for a number of updates, 5 or more, of which the first fifth is a warm-up.

    In a synchronous scenario a batch is in the order of commits. headrace orders it by actor, which
    takes the same time.
    """
    require(num_updates >= 5, "num_updates", num_updates, "5 or more (nearest: 5)")
    run = _Run(scenario)
    env, outcome = run.env, run.outcome
    for actor in run.actors:
        env.process(run.act(actor))
    warm_up = max(1, round(_WARM_UP * num_updates))
    env.run(env.process(run.learn(warm_up)))
    start, before = env.now, outcome.trained
    run.forget()
    env.run(env.process(run.learn(num_updates - warm_up)))
    run._note_depth()
    seconds = env.now - start
    acting = sum(actor.acting_s for actor in run.actors)
    waiting = sum(actor.waiting_s for actor in run.actors)
    outcome.sps = (outcome.trained - before) * scenario.steps_per_rollout / seconds
    outcome.updates_per_s = (num_updates - warm_up) / seconds
    outcome.utilisation_learner = run.learning_s / seconds
    outcome.utilisation_actors = acting / (acting + waiting) if acting + waiting else 0.0
    outcome.simulated_s, outcome.waiting = env.now, len(run._pending)
    outcome.depth_line = outcome.depth_line[:: 1 + len(outcome.depth_line) // _MAX_POINTS]
    return outcome

"""Delivers rollouts to the learner: slots, weights and actors of one transport."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeAlias

import numpy as np
from torch import Tensor

from headrace.actors.actor import Actor
from headrace.actors.fleet import Fleet
from headrace.actors.inference_server import InferenceServer, without_weights
from headrace.actors.restarts import Restarts
from headrace.actors.spec import ActorSpec, Memory
from headrace.errors import ActorFailed
from headrace.nn.multi_policy import AnyPolicy
from headrace.nn.policy import policy_weights
from headrace.processes import restore_torch_defaults, seed_global_generators
from headrace.processes.ray_package import ray_package
from headrace.processes.running_clock import running_s
from headrace.transport.queue import NUM_HEADER_FIELDS, Header, PeerDied, RolloutQueue
from headrace.transport.serial import SerialQueue
from headrace.transport.shm import MAX_OPEN, ShmQueue
from headrace.transport.slab import Slab, spec_of
from headrace.transport.slots import Slots, SlotStorage
from headrace.transport.weights import WeightSink, WeightStore
from headrace.types import Rollout

_POLL_S = 0.5
_PATIENT_S = 20.0  # time before a message that actors have delivered nothing
Taken: TypeAlias = tuple[int, Header, Rollout]  # slot, and views of it


class ActorFleet(Protocol):
    """Starts a transport's actors, replaces those that die, and stops them all."""

    restarts: Restarts

    def start(self) -> None:
        """Start the actors."""

    def pids(self) -> list[int]:
        """Return their process ids, each on its own machine."""

    def order(self, text: bytes) -> None:
        """Send an environment change to all actors, and to those that replace them later."""

    def replace(self, death: PeerDied) -> str:
        """Start a new actor for a dead one; return a line about it."""

    def supervise(self) -> str | None:
        """Check what the actors depend on; return lines about changes."""

    def kill_silent(self, timeout_s: float) -> None:
        """Kill actors that had work for ``timeout_s`` and delivered nothing."""

    def close(self) -> None:
        """Stop all actors; safe to call twice."""


class RunStopped(Exception):
    """Unwinds a wait for rollouts when the run is stopped."""


def _as_it_was(run_once: Callable[[], object]) -> Callable[[], None]:
    """Wrap an actor's work in this process so that it keeps its own NumPy error state.

    Afterwards the learner's NumPy error state and torch's usual defaults are restored.
    """
    own = np.geterr()

    def run() -> None:
        nonlocal own
        before = np.seterr(**own)
        try:
            run_once()
        finally:
            own = np.seterr(**before)
            restore_torch_defaults()

    return run


class RolloutSource:
    """Runs actors with the latest published weights and delivers their rollouts.

    Actors start when weights are published for the first time.

    Args:
        spec: spec of the actors.
        notify: called with a line of text when an actor is replaced.
        model: buffer of the :class:`~headrace.learner.hogwild.SharedModel`, if actors compute
            gradients.
    """

    def __init__(
        self, spec: ActorSpec, notify: Callable[[str], None], model: Tensor | None = None
    ) -> None:
        self._notify, self._timeout_s = notify, spec.settings.actor_timeout_s
        self._leads = spec.rank == 0
        self._reports_at_s = math.inf  # time of the message that actors start slowly
        self.num_tasks = spec.num_tasks
        self._spec: ActorSpec | None = None  # of actors in this process
        self._actors: list[Actor] = []
        self._slab: SlotStorage
        self._weights: WeightSink
        self._fleet: ActorFleet | None = None
        self._queue: RolloutQueue
        if spec.settings.cluster is None:
            self._open_here(spec, model)
        else:
            opened = ray_package("fleet").open_ray(spec)
            self._slots, self._slab, self._queue, self._fleet = opened
            self._weights = opened[2]  # the queue stores them as well

    def _open_here(self, spec: ActorSpec, model: Tensor | None) -> None:
        """Create the actors of this machine."""
        settings = spec.settings
        shared = settings.transport == "shm"
        slab = Slab(spec.layout(), spec.num_slots, NUM_HEADER_FIELDS, shared=shared)
        weights = WeightStore(spec_of(policy_weights(spec.policy)), shared=shared)
        self._slab, self._weights = slab, weights
        self._memory = Memory(slab.buffer, weights.buffer, model)
        sizes = settings.num_actors, settings.slots_per_actor
        ordered, credits = settings.algo.max_lag == 0, settings.num_credits
        self._slots = Slots(slab, *sizes, ordered, False, credits, spec.num_tasks, MAX_OPEN)
        if not shared:
            self._queue = SerialQueue(self._slots)
            self._spec = spec
            return
        queue = self._queue = ShmQueue(self._slots, settings.actor_timeout_s)
        inference = None
        if settings.inference == "shared":
            inference = InferenceServer(spec, weights.buffer)
            spec = without_weights(spec)
        self._fleet = Fleet(spec, queue, self._memory, inference)

    def publish(self, policy: AnyPolicy, version: int, epoch: int) -> None:
        """Publish the policy's weights for actors to pull."""
        is_first = self._weights.latest() is None
        if is_first and self._leads:
            self._reports_at_s = running_s() + _PATIENT_S
        self._weights.publish(version, epoch, policy_weights(policy))
        if is_first:
            self._start()

    def _start(self) -> None:
        if self._fleet is not None:
            self._fleet.start()
            return
        assert isinstance(self._queue, SerialQueue)
        assert self._spec is not None
        seed_global_generators(self._spec.settings.seed, "serial", self._spec.first_actor)
        for i in range(self._spec.settings.num_actors):
            own = replace(self._spec, policy=copy.deepcopy(self._spec.policy))
            actor = Actor(own, i, 0, self._queue.port(i), self._memory)
            self._queue.attach(i, _as_it_was(actor.run_once))
            self._actors.append(actor)

    @property
    def num_restarts(self) -> int:
        """Number of actor restarts."""
        return 0 if self._fleet is None else self._fleet.restarts.count

    def lost(self) -> int:
        """Return the rollouts lost in dead actors since the last call."""
        lost, self._slots.lost = self._slots.lost, 0
        return lost

    @property
    def depth(self) -> int:
        """Number of rollouts waiting for the learner."""
        return len(self._slots)

    @property
    def num_slots(self) -> int:
        """Number of rollouts that can be in flight."""
        return len(self._slab.trees)

    def pids(self) -> list[int]:
        """Return the actors' process ids, each on its own machine; empty with serial transport."""
        return [] if self._fleet is None else self._fleet.pids()

    def cut(self, version: int) -> None:
        """Request that actors cut their rollouts of this version short."""
        self._weights.cut(version)

    def has(self, count: int) -> bool:
        """Return True if ``count`` rollouts are waiting, in equal shares of tasks."""
        tasks = range(self.num_tasks)
        return all(self._slots.waiting(task) * len(tasks) >= count for task in tasks)

    def take(self, count: int, stopped: Callable[[], bool], task: int = 0) -> list[Taken]:
        """Take ``count`` rollouts of a task as (slot, header, views); replaces dead actors.

        Raises:
            ActorFailed: an actor died too often, or no rollout arrived in time.
            RunStopped: ``stopped()`` returned True while waiting.
        """
        patience_s = 2 * self._timeout_s
        deadline = running_s() + patience_s
        while True:
            try:
                slots = self._queue.take(count, _POLL_S, task)
                self._reports_at_s = math.inf
                break
            except PeerDied as death:
                assert self._fleet is not None
                self._notify(self._fleet.replace(death))
                deadline = running_s() + patience_s
            except TimeoutError as error:
                if self._fleet is None:
                    raise ActorFailed(str(error)) from error
                if running_s() > deadline:
                    raise ActorFailed(f"{error}, nor in the preceding {patience_s:g} s") from error
                self.kill_hung()
                self._report_slow_start()
            if stopped():
                raise RunStopped
        return [(s, self._slots.header(s), Rollout(**self._slab.trees[s])) for s in slots]

    def _report_slow_start(self) -> None:
        """Report once that actors are slow to deliver their first rollouts."""
        if running_s() < self._reports_at_s:
            return
        self._reports_at_s = math.inf
        count = self._slots.num_actors
        begun = sum(self._slots.delivered(actor) > 0 for actor in range(count))
        self._notify(f"waiting for actors: {begun} of {count} have delivered a rollout so far")

    def order(self, text: str) -> None:
        """Change all environments, see :class:`~headrace.envs.changes.EnvChange`.

        Actors apply the change before their next rollout. Actors that start later apply it first.
        """
        if self._fleet is not None:
            self._fleet.order(text.encode())
            return
        self._memory = replace(self._memory, orders=(*self._memory.orders, text.encode()))
        for actor in self._actors:
            actor.order(text.encode())

    def message(self, slot: int) -> bytes:
        """Pop the message that came with the rollout in a taken slot."""
        return self._slots.message(slot)

    def note(self, slot: int, nats: float) -> None:
        """Report the learner's policy divergence to the actor of a taken slot."""
        self._slots.note(slot, nats)

    def release(self, slots: list[int]) -> None:
        """Return slots to their actors."""
        self._queue.release(slots)

    def kill_hung(self) -> None:
        """Kill actors that delivered nothing for ``actor_timeout_s`` despite a free slot.

        Raises:
            ActorFailed: the inference server is dead or silent and can't be restarted.
        """
        if self._fleet is not None:
            if (line := self._fleet.supervise()) is not None:
                self._notify(line)
            self._fleet.kill_silent(self._timeout_s)

    def close(self) -> None:
        """Stop all actors; safe to call twice."""
        self._queue.close()
        if self._fleet is not None:
            self._fleet.close()
        for actor in self._actors:
            actor.close()
        self._actors = []

"""Where rollouts come from: slots, weights and actors of one transport, as one object."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

from headrace.acting.actor import Actor, ActorSpec, policy_weights, weight_spec
from headrace.acting.fleet import Fleet
from headrace.config import Config
from headrace.errors import ActorFailed
from headrace.learning.hogwild import SharedModel, learner_maker
from headrace.nn.policy import Policy
from headrace.process import cores
from headrace.transport.queue import NUM_HEADER_FIELDS, Header, PeerDied
from headrace.transport.serial import SerialQueue
from headrace.transport.shm import ShmQueue
from headrace.transport.slab import Slab
from headrace.transport.weights import WeightStore
from headrace.types import Rollout

_POLL_S = 0.5


class Stopped(Exception):
    """Unwinds a wait for rollouts when the run is stopped."""


class RolloutSource:
    """Actors that act with the latest published weights, and the rollouts that they deliver.

    Args:
        config: of the run.
        env: resolved (``headrace.envs.make.resolve``).
        policy: what actors copy.
        version, epoch: of the first publication.
        notify: called with a line of text when an actor is replaced.
        model: where the actors apply gradients, if they compute any.
        first_actor: number of the first actor among those of all learners.
        may_be_cut: whether :meth:`cut` will be called.
    """

    def __init__(
        self,
        config: Config,
        env: Any,
        policy: Policy,
        version: int,
        epoch: int,
        notify: Callable[[str], None],
        model: SharedModel | None = None,
        first_actor: int = 0,
        may_be_cut: bool = False,
    ) -> None:
        self._config, self._notify = config, notify
        spec = ActorSpec(
            env=env,
            engine=config.engine,
            env_kwargs=config.env_kwargs,
            num_envs=config.envs_per_actor,
            num_steps=config.fragment_length,
            seed=config.seed,
            cores=None if config.cores_per_learner is None else frozenset(cores()),
            first_actor=first_actor,
            policy=copy.deepcopy(policy).cpu(),  # an actor needs no accelerator
            gamma=config.algo.gamma if config.algo.normalize_returns else None,
            algorithm=None if model is None else config.algo,
            max_rollout_s=config.max_rollout_seconds,
            may_be_cut=may_be_cut,
            sync=config.sync,
        )
        shared = config.transport == "shm"
        num_slots = config.num_actors * config.slots_per_actor
        slab = Slab(spec.spec(), num_slots, NUM_HEADER_FIELDS, shared=shared)
        self._weights = WeightStore(weight_spec(policy), shared=shared)
        self.publish(policy, version, epoch)
        shape = (slab, config.num_actors, config.slots_per_actor, config.algo.max_lag == 0)
        self._fleet: Fleet | None = None
        self._actors: list[Actor] = []
        self._queue: ShmQueue | SerialQueue
        buffer = None if model is None else model.buffer
        if shared:
            self._queue = ShmQueue(*shape)
            limits = (config.num_actors, config.actor_restarts)
            self._fleet = Fleet(spec, *limits, self._queue, slab, self._weights, buffer)
            self._fleet.start()
        else:
            self._queue = SerialQueue(*shape)
            maker = learner_maker(spec.algorithm, num_slots, buffer)
            for i in range(config.num_actors):
                actor = Actor(spec, i, 0, self._queue.port(i), self._weights, slab, maker)
                self._queue.attach(i, actor.run_once)
                self._actors.append(actor)

    @property
    def num_restarts(self) -> int:
        """Actors that died and were replaced."""
        return 0 if self._fleet is None else self._fleet.num_restarts

    @property
    def depth(self) -> int:
        """Rollouts that wait for the learner."""
        return self._queue.depth()

    def pids(self) -> list[int]:
        """Process ids of the actors; empty with the serial transport."""
        return [] if self._fleet is None else self._fleet.pids()

    def publish(self, policy: Policy, version: int, epoch: int) -> None:
        """Make the policy's weights the ones that actors pull next."""
        self._weights.publish(version, epoch, policy_weights(policy))

    def cut(self, version: int) -> None:
        """Ask actors to end their rollouts of this version where they are."""
        self._weights.cut(version)

    def take(self, count: int, stopped: Callable[[], bool]) -> list[tuple[int, Header, Rollout]]:
        """``count`` rollouts as (slot, header, views of the slot); dead actors are replaced.

        Raises:
            ActorFailed: an actor died once too often, or nothing came in time.
            Stopped: ``stopped()`` turned true while waiting.
        """
        patience_s = 2 * self._config.actor_timeout_s
        deadline = time.monotonic() + patience_s
        while True:
            try:
                slots = self._queue.take(count, _POLL_S)
                break
            except PeerDied as death:
                assert self._fleet is not None
                self._notify(self._fleet.replace(death))
                deadline = time.monotonic() + patience_s
            except TimeoutError as error:
                if self._fleet is None:
                    raise ActorFailed(str(error)) from error
                if time.monotonic() > deadline:
                    raise ActorFailed(f"{error}, nor in the {patience_s:g} s before") from error
                self.kill_hung()
            if stopped():
                raise Stopped
        return [(s, self._queue.header(s), Rollout(**self._queue.tree(s))) for s in slots]

    def note(self, slot: int, nats: float) -> None:
        """Tell the actor of a taken slot how far the learner is from what is in it."""
        self._queue.note(slot, nats)

    def release(self, slots: list[int]) -> None:
        """Give slots back to their actors."""
        self._queue.release(slots)

    def kill_hung(self) -> None:
        """Kill actors that have delivered nothing for ``actor_timeout_s`` though they could."""
        if self._fleet is not None:
            self._fleet.kill_silent(self._config.actor_timeout_s)

    def close(self) -> None:
        """End all actors; safe to call twice."""
        self._queue.close()
        if self._fleet is not None:
            self._fleet.close()
        for actor in self._actors:
            actor.close()
        self._actors = []

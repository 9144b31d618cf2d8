"""The actor: acquire a slot, pull the newest weights if it is time to, fill the slot, commit it.

acquire ──► pull weights ──► collect ──► (learn) ──► commit
   ▲                                                    │
   └────────────────────────────────────────────────────┘

A slot comes back with the header of the rollout that was in it, into which the learner has written
how far its policy had moved away; these numbers decide when to pull (``weight_sync.py``).
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gymnasium.vector import VectorEnv
from torch import Tensor

from headrace.acting.collector import Collector, rollout_spec
from headrace.acting.own_pace import stepping_for
from headrace.acting.weight_sync import Follower, SyncRule
from headrace.algos.common import Hyperparameters
from headrace.envs.make import env_seed, make_vec
from headrace.envs.names import env_name
from headrace.learning.hogwild import ActorLearner
from headrace.nn.policy import Policy, policy_weights
from headrace.transport.queue import NUM_HEADER_FIELDS, ActorPort, Header, read_header
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Rollout

_MIN_CUT_SHARE = 0.25  # of a rollout that is cut for the other learners' sake, as in DD-PPO


@dataclass(frozen=True)
class ActorSpec:
    """All that a learner's actors are built from and run by: one object from trainer to actor.

    Fields with the name of a setting have its value (``Config.actor_spec``).
    """

    env: Any  # an EnvSpec, an Env class or a callable (``headrace.envs.names.resolve``)
    policy: Policy  # on the CPU; actors copy it
    algo: Hyperparameters
    envs_per_actor: int
    fragment_length: int
    engine: str = "auto"
    env_kwargs: dict[str, Any] = field(default_factory=dict)
    seed: int = 0
    transport: str = "serial"
    num_actors: int = 1
    slots_per_actor: int = 1
    actor_restarts: int = 0  # deaths that are made good
    actor_timeout_s: float = 300.0
    max_rollout_seconds: float | None = None  # a rollout is cut short after so long
    sync: SyncRule = field(default_factory=SyncRule)  # when weights are pulled
    first_actor: int = 0  # number of actor 0 among those of all learners
    may_be_cut: bool = False  # the learner may ask for it through the weight store
    processors: frozenset[int] | None = None  # where actor processes stay; None: anywhere

    @property
    def num_slots(self) -> int:
        """Of all actors."""
        return self.num_actors * self.slots_per_actor

    def layout(self) -> dict[str, Any]:
        """The tree of :class:`ArraySpec` of one slot."""
        algo = self.algo
        return rollout_spec(
            self.policy,
            self.fragment_length,
            self.envs_per_actor,
            gamma=algo.gamma if algo.normalize_returns else None,
            learns=algo.learns_in_actors,
        )


@dataclass(frozen=True)
class Memory:
    """What a learner and its actors share, in one process or several: flat buffers, uint8."""

    slots: Tensor  # of a Slab
    weights: Tensor  # of a WeightStore
    model: Tensor | None = None  # of a SharedModel, where actors learn


class Actor:
    """One actor: an environment, a copy of the policy, and its ends of queue and weight store.

    Args:
        spec: what to build.
        index: of this actor; generation: how often actors were restarted before.
        port: its end of the queue, whose slot numbers point into ``memory``.
    """

    def __init__(
        self, spec: ActorSpec, index: int, generation: int, port: ActorPort, memory: Memory
    ) -> None:
        self._spec, self._index, self._generation = spec, index, generation
        self._port, self._follower = port, Follower(spec.sync)
        policy = copy.deepcopy(spec.policy).cpu()
        self._learner: ActorLearner | None = None
        if memory.model is not None:
            self._learner = ActorLearner(policy, spec.algo, index, spec.num_actors, memory.model)
        self._state = policy_weights(policy)
        self._slab = Slab(spec.layout(), spec.num_slots, NUM_HEADER_FIELDS, memory.slots)
        self._weights = WeightStore(spec_of(self._state), memory.weights)
        self._envs, self._collector = open_collector(spec, policy)
        self._epoch, self._sequence = -1, 0

    def run_once(self, timeout_s: float = 3600.0) -> bool:
        """Deliver one rollout; False when the queue is closed.

        Raises:
            TimeoutError: the learner gave no slot in time.
            EnvironmentFault: see :meth:`Collector.fill`.
        """
        started = time.monotonic_ns()
        slot = self._port.acquire(timeout_s)
        if slot is None:
            return False
        acquired = time.monotonic_ns()
        pulled = self._pull(read_header(self._slab.headers[slot]))
        version = self._follower.version
        rollout = Rollout(**self._slab.trees[slot])
        valid_steps = self._collector.fill(rollout, version, self._cut())
        lag = -1 if self._learner is None else self._learner.learn(rollout)
        now = time.monotonic_ns()
        self._slab.headers[slot][:] = Header(
            actor=self._index,
            sequence=self._sequence,
            version=version,
            valid_steps=valid_steps,
            committed_ns=now,
            acting_ns=now - acquired,
            waiting_ns=acquired - started,
            pulled=pulled,
            lag=lag,
        )
        self._sequence += 1
        self._port.commit(slot)
        return True

    def _pull(self, returned: Header) -> bool:
        """Copy the newest weights if it is time to; returns whether anything was copied.

        Args:
            returned: what the slot's header says of the rollout that was in it.
        """
        if returned.divergence is not None:
            self._follower.note(returned.version, returned.divergence)
        news = self._weights.pull(self._follower.version, self._state) if self._is_due() else None
        if self._learner is not None:
            self._learner.pull()  # after the published parameters, which are older
        if news is not None:
            self._follower.fetched(news[0])
            self._enter(news[1])
        return news is not None or self._learner is not None

    def _is_due(self) -> bool:
        latest = self._weights.latest()
        if latest is None:
            return False
        version, epoch = latest
        return epoch != self._epoch or self._follower.wants(version)

    def _enter(self, epoch: int) -> None:
        """Reset the environments if the epoch is a new one."""
        if epoch != self._epoch:
            self._epoch = epoch
            seed = env_seed(
                self._spec.seed,
                self._spec.first_actor + self._index,
                self._spec.envs_per_actor,
                generation=self._generation + 16 * epoch,
            )
            self._collector.reset(seed)

    def _cut(self) -> Callable[[], bool] | None:
        """What the collector asks after each step: is the rollout to end here?"""
        spec = self._spec
        if spec.max_rollout_seconds is None and not spec.may_be_cut:
            return None
        limit_s = math.inf if spec.max_rollout_seconds is None else spec.max_rollout_seconds
        end = time.monotonic() + limit_s
        num_steps = 0

        def ask() -> bool:
            nonlocal num_steps
            num_steps += 1
            wanted = num_steps < _MIN_CUT_SHARE * spec.fragment_length
            if spec.may_be_cut and not wanted and self._weights.is_cut(self._follower.version):
                return True
            return time.monotonic() >= end

        return ask

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
        if self._learner is not None:
            self._learner.close()


def open_collector(spec: ActorSpec, policy: Policy) -> tuple[VectorEnv, Collector]:
    """An actor's environments, and what fills rollouts from them with this policy.

    Raises:
        ConfigError: the environment can't be made.
    """
    envs = make_vec(spec.env, spec.envs_per_actor, spec.engine, spec.env_kwargs)
    name, algo = env_name(spec.env), spec.algo
    stepping = stepping_for(envs, policy, name)
    gamma = algo.gamma if algo.normalize_returns else None
    return envs, Collector(envs, policy, name, gamma, stepping)

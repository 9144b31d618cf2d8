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
from typing import Any, Protocol

from headrace.acting.collector import Collector, rollout_spec
from headrace.acting.own_pace import stepping_for
from headrace.acting.weight_sync import Follower, SyncRule
from headrace.envs.make import env_name, env_seed, make_vec
from headrace.nn.policy import Policy
from headrace.transport.queue import ActorPort, Header, read_header
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightStore
from headrace.types import Rollout, Tree

_MIN_CUT_SHARE = 0.25  # of a rollout that is cut for the other learners' sake, as in DD-PPO


@dataclass(frozen=True)
class ActorSpec:
    """All that an actor is built from, in this process or another."""

    env: Any  # an EnvSpec, an Env class or a callable (``headrace.envs.make.resolve``)
    engine: str
    env_kwargs: dict[str, Any]
    num_envs: int
    num_steps: int  # fragment length
    seed: int
    policy: Policy
    cores: frozenset[int] | None = None  # where an actor process stays; None: anywhere
    first_actor: int = 0  # number of actor 0 among those of all learners
    gamma: float | None = None  # see rollout_spec
    algorithm: Any = None  # what the actor learns with; None: it only acts
    max_rollout_s: float | None = None  # a rollout is cut short after so long
    may_be_cut: bool = False  # the learner may ask for it through the weight store
    sync: SyncRule = field(default_factory=SyncRule)  # when it pulls weights

    def spec(self) -> dict[str, Any]:
        """The layout of one slot."""
        return rollout_spec(self.policy, self.num_steps, self.num_envs, self.gamma)


class OwnLearner(Protocol):
    """What an actor that computes gradients has beside its policy; see ``learning/hogwild.py``."""

    def pull(self) -> None:
        """Bring the policy's parameters up to date."""

    def learn(self, rollout: Rollout, slot: int) -> None:
        """Learn from a filled slot, before it is committed."""

    def close(self) -> None:
        """Free what it holds."""


class Actor:
    """One actor: an environment, a copy of the policy, and its ends of queue and weight store.

    Args:
        spec: what to build.
        index: of this actor; generation: how often it was restarted.
        port, weights: its ends; slab: where the port's slot numbers point.
        make_learner: gives the actor's policy a learner of its own; None: it only acts.
    """

    def __init__(
        self,
        spec: ActorSpec,
        index: int,
        generation: int,
        port: ActorPort,
        weights: WeightStore,
        slab: Slab,
        make_learner: Callable[[Policy], OwnLearner] | None = None,
    ) -> None:
        self._spec, self._index, self._generation = spec, index, generation
        self._port, self._weights, self._slab = port, weights, slab
        policy = copy.deepcopy(spec.policy).cpu()
        self._learner = None if make_learner is None else make_learner(policy)
        self._envs = make_vec(spec.env, spec.num_envs, spec.engine, spec.env_kwargs)
        name = env_name(spec.env)
        stepping = stepping_for(self._envs, policy, name)
        self._collector = Collector(self._envs, policy, name, spec.gamma, stepping)
        self._state = policy_weights(policy)
        self._follower = Follower(spec.sync)
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
        if self._learner is not None:
            self._learner.learn(rollout, slot)
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
                self._spec.num_envs,
                generation=self._generation + 16 * epoch,
            )
            self._collector.reset(seed)

    def _cut(self) -> Callable[[], bool] | None:
        """What the collector asks after each step: is the rollout to end here?"""
        spec = self._spec
        if spec.max_rollout_s is None and not spec.may_be_cut:
            return None
        end = math.inf if spec.max_rollout_s is None else time.monotonic() + spec.max_rollout_s
        num_steps = 0

        def ask() -> bool:
            nonlocal num_steps
            num_steps += 1
            wanted = num_steps < _MIN_CUT_SHARE * spec.num_steps
            if spec.may_be_cut and not wanted and self._weights.is_cut(self._follower.version):
                return True
            return time.monotonic() >= end

        return ask

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
        if self._learner is not None:
            self._learner.close()


def policy_weights(policy: Policy) -> Tree:
    """The tensors that a learner publishes and an actor overwrites: parameters and buffers."""
    return {name: value.detach() for name, value in policy.state_dict().items()}


def weight_spec(policy: Policy) -> Tree:
    """The tree of :class:`ArraySpec` of :func:`policy_weights`."""
    return spec_of(policy_weights(policy))

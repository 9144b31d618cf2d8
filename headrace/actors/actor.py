"""Runs one actor: acquire a slot, pull new weights if due, fill the slot, commit it.

acquire ──► pull weights ──► collect ──► (learn) ──► commit
   ▲                                                    │
   └────────────────────────────────────────────────────┘

A slot returns with the header of its last rollout, in which the learner has written its policy's
divergence from the one that acted. These measurements decide when to pull (``weight_sync.py``).
"""

from __future__ import annotations

import json
import math
import os
import secrets
import sys
import time
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
from gymnasium.vector import VectorEnv
from torch import Tensor

from headrace.actors.asynchronous import AsynchronousStepper
from headrace.actors.collector import Collector
from headrace.actors.inference_client import InferenceClient
from headrace.actors.restarts import last_words
from headrace.actors.spec import ActorSpec, Memory
from headrace.actors.synchronous import ActingPolicy, Cut
from headrace.actors.weight_sync import Follower
from headrace.envs.bounds_warnings import ignore_bounds_warnings
from headrace.envs.changes import EnvChange, apply
from headrace.envs.context import EnvContext
from headrace.envs.info_metrics import InfoMetrics
from headrace.envs.make import env_seed, make_vec
from headrace.envs.names import env_name, env_of
from headrace.envs.threads import Threads
from headrace.errors import EnvironmentFault
from headrace.games.opponent_env import OpponentEnv
from headrace.games.opponent_sampling import OpponentSampler
from headrace.games.vector import in_turns
from headrace.games.zero_sum import checked_zero_sum
from headrace.learner.hogwild import ActorLearner
from headrace.nn.inputs import Inputs
from headrace.nn.policy import Policy, policy_weights
from headrace.nn.weightless import allocate_weights
from headrace.processes import (
    keep_torch_defaults_apart,
    restore_torch_defaults,
    return_freed_memory,
    seed_global_generators,
    set_affinity,
    use_batch_scheduling,
)
from headrace.spaces.agreement import difference
from headrace.transport.queue import NUM_HEADER_FIELDS, ActorPort, Header, read_header
from headrace.transport.shm import ShmPort
from headrace.transport.slab import Slab, spec_of
from headrace.transport.weights import WeightSource, WeightStore
from headrace.types import Rollout, Tree

_MIN_CUT_SHARE = 0.25  # least share of a rollout before preemption, as in DD-PPO
NOT_BEGUN = 3  # exit code of an actor that could not make its environments


class Actor:
    """Steps environments with a policy and delivers rollouts through a queue.

    Args:
        spec: specification of the actor, with its own copy of the policy.
        index: index of this actor.
        generation: number of actor restarts before this start.
        port: its end of the queue; slot numbers refer to ``memory``.
    """

    def __init__(
        self, spec: ActorSpec, index: int, generation: int, port: ActorPort, memory: Memory
    ) -> None:
        spec = replace(spec, env=env_of(spec.env, spec.first_actor + index))
        settings = spec.settings
        self._spec, self._index, self._generation = spec, index, generation
        self._port, self._follower = port, Follower(settings.sync)
        policy = spec.policy
        self._learner: ActorLearner | None = None
        if memory.model is not None:
            assert isinstance(policy, Policy)
            self._learner = ActorLearner(
                policy, settings.algo, index, settings.num_actors, memory.model
            )
        self._state: Tree = policy_weights(policy)
        self._slab = Slab(spec.layout(), spec.num_slots, NUM_HEADER_FIELDS, memory.slots)
        weights, like = memory.weights, spec_of(self._state)
        self._weights: WeightSource
        self._weights = WeightStore(like, weights) if isinstance(weights, Tensor) else weights
        acting: ActingPolicy = policy
        if memory.line is not None:  # the inference server fetches weights
            assert isinstance(policy, Policy)
            channel = memory.line, self._follower, 2 * settings.actor_timeout_s, env_name(spec.env)
            acting, self._state = InferenceClient(policy, *channel), None
        seed = self._env_seed(generation)
        self._envs, self._collector = open_collector(spec, acting, index, seed)
        self._epoch, self._sequence = -1, 0
        for text in memory.orders:
            self.order(text)

    def order(self, text: bytes) -> None:
        """Apply a change to the environments, see :class:`~headrace.envs.changes.EnvChange`.

        Raises:
            EnvironmentFault: an environment doesn't support the change, or raised.
        """
        apply(self._envs, EnvChange.from_json(text.decode()), env_name(self._spec.env))

    def run_once(self, timeout_s: float = 3600.0) -> bool:
        """Deliver one rollout; return False if the queue is closed.

        Raises:
            TimeoutError: no slot became free in time.
            EnvironmentFault: see :meth:`Collector.fill`.
        """
        started = time.monotonic_ns()
        slot = self._port.acquire(timeout_s)
        if slot is None:
            return False
        for text in self._port.orders():
            self.order(text)
        acquired = time.monotonic_ns()
        pulled = self._pull(read_header(self._slab.headers[slot]))
        restore_torch_defaults()  # the environment may have changed them
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
            stepping_ns=self._collector.stepping_ns,
        )
        self._sequence += 1
        if metrics := self._collector.metrics.take():
            self._port.commit(slot, json.dumps(metrics).encode())
        else:
            self._port.commit(slot)
        if self._sequence == 1:
            return_freed_memory()  # used at startup
        return True

    def _pull(self, returned: Header) -> bool:
        """Copy the newest weights if due; return True if anything was copied.

        Args:
            returned: header of the rollout that was in the slot.
        """
        if returned.divergence is not None:
            self._follower.note(returned.version, returned.divergence)
        latest, news = self._weights.latest(), None
        if latest is not None and (latest[1] != self._epoch or self._follower.wants(latest[0])):
            news = self._weights.pull(self._follower.version, self._state)
        if self._learner is not None:
            self._learner.pull()  # after the published parameters, as they are older
        if news is not None:
            version, epoch = news
            self._follower.fetched(version)
            if epoch != self._epoch:
                self._reset(epoch)
        return news is not None or self._learner is not None

    def _reset(self, epoch: int) -> None:
        """Reset the environments at the start of a new epoch."""
        self._epoch, generation = epoch, self._generation + 16 * epoch
        number = self._spec.first_actor + self._index
        seed_global_generators(self._spec.settings.seed, "epoch", number, generation)
        self._collector.reset(self._env_seed(generation))
        keep_torch_defaults_apart(self._envs)

    def _env_seed(self, generation: int) -> int:
        settings = self._spec.settings
        number = self._spec.first_actor + self._index
        return env_seed(settings.seed, number, settings.envs_per_actor, generation=generation)

    def _cut(self) -> Cut:
        """Return a function that the collector calls after each step to see if the rollout ends."""
        spec, settings = self._spec, self._spec.settings
        if settings.max_rollout_seconds is None and not spec.may_be_cut:
            return None
        limit_s = math.inf if settings.max_rollout_seconds is None else settings.max_rollout_seconds
        end = time.monotonic() + limit_s
        least_steps = _MIN_CUT_SHARE * settings.fragment_length
        num_steps = 0

        def is_due() -> bool:
            nonlocal num_steps
            num_steps += 1
            enough = num_steps >= least_steps
            if spec.may_be_cut and enough and self._weights.is_cut(self._follower.version):
                return True
            return time.monotonic() >= end

        return is_due

    def close(self) -> None:
        """Close the environments."""
        self._envs.close()
        if self._learner is not None:
            self._learner.close()


def run_actor(
    pickled: bytearray, index: int, generation: int, memory: Memory, pipe: Connection
) -> None:
    """Run an actor process: deliver rollouts until the learner closes the pipe or dies.

    An exception exits the process with code 1 after its traceback was sent, or with ``NOT_BEGUN``
    if the environments could not be made.

    Args:
        pickled: pickled :class:`ActorSpec` with a weightless policy. It is emptied here, because
            the process keeps its arguments alive.
        index, generation, memory: see :class:`Actor`.
    """
    port, code = ShmPort(pipe), NOT_BEGUN
    try:
        spec: ActorSpec = cloudpickle.loads(pickled)
        allocate_weights(spec.policy)
        pickled.clear()
        set_affinity(spec.processors)
        use_batch_scheduling()
        warn_once_per_run(spec, index, generation)
        seed_global_generators(spec.settings.seed, "actor", spec.first_actor + index, generation)
        actor = Actor(spec, index, generation, port, memory)
        code = 1
        while actor.run_once():
            pass
    except BaseException as error:
        port.fail(last_words(error))
        sys.exit(code)


def warn_once_per_run(spec: ActorSpec, index: int, generation: int) -> None:
    """Let only the first actor of each task warn about observations beyond their bounds."""
    if generation or spec.first_actor + index >= spec.num_tasks:
        ignore_bounds_warnings()


def open_collector(
    spec: ActorSpec, policy: ActingPolicy, index: int = 0, seed: int = 0
) -> tuple[VectorEnv, Collector]:
    """Create an actor's environments and the collector that fills rollouts from them.

    Args:
        index: index of the actor among those of its learner.
        seed: see :func:`make_vec`.

    Raises:
        ConfigError: the environment can't be made.
    """
    settings, number = spec.settings, spec.first_actor + index
    context = EnvContext(number * spec.envs_made, number, spec.rank, "train")
    how = settings.engine, settings.env_kwargs, seed
    envs: Any = make_vec(spec.env, spec.envs_made, *how, context=context)
    keep_torch_defaults_apart(envs)
    name, algo = env_name(spec.env), settings.algo
    _check_spaces(envs, policy.inputs, name)
    if settings.zero_sum:
        envs = checked_zero_sum(envs, name)
    asynchronous = isinstance(envs, Threads) or in_turns(envs)
    if spec.seating is not None:
        draw = OpponentSampler(spec.seating, f"{os.getpid()}-{secrets.token_hex(4)}")
        sizes = settings.envs_per_actor, len(spec.agents), spec.seating.mixture, draw
        envs = OpponentEnv(envs, *sizes)
    agents = spec.agents if spec.seating is None else ()  # with opponents, agents change seats
    metrics = InfoMetrics(envs.num_envs, settings.info_metrics, agents)
    stepping = AsynchronousStepper(envs, policy, name, metrics) if asynchronous else None
    gamma = algo.gamma if algo.normalize_returns else None
    return envs, Collector(envs, policy, name, gamma, stepping, metrics, algo.noise_color)


def _check_spaces(envs: VectorEnv, inputs: Inputs, name: str) -> None:
    """Raise EnvironmentFault unless an actor's environments have the spaces of the policy."""
    own = envs.single_observation_space, envs.single_action_space
    expected = inputs.observation_space, inputs.action_space
    if other := difference(*expected, *own, whose="the first one's"):
        raise EnvironmentFault(
            f"{name}: all environments of a run need the same spaces, but in an actor's "
            f"environments {other}"
        )

"""Shared inference: one process has the weights and acts for all actors of a learner.

    actor       produces: observations, state      waits for: parameters, the next state
    inference   produces: parameters, next state   waits for: observations

Batches are whatever is there (dynamic batching, Espeholt et al. 2018, section 3.1): once an actor
asks, those of all actors that fill a rollout, or that have asked ``max_wait_ms`` later. Parameters
of the distribution come back, from which the actor draws with noise of its own, so a step's
log-probability is that of the weights and the precision that acted. A call names its rollout's
version: these weights act on it or newer ones, where another actor was given them meanwhile.

Recurrent state lies beside the observations in shared memory, so it outlives this process.
"""

from __future__ import annotations

import copy
import sys
import traceback
from dataclasses import replace
from multiprocessing.connection import Connection

import cloudpickle
import torch
from torch import Tensor

from headrace.actors.inference_client import calls_of
from headrace.actors.spec import ActorSpec
from headrace.errors import ActorFailed
from headrace.nn.policy import Policy, policy_weights
from headrace.ops import tree
from headrace.processes import (
    Child,
    end_children,
    full_float32,
    push_nobody_aside,
    seed_global_generators,
    stay_on,
)
from headrace.transport.request_channel import (
    BEAT_S,
    ChannelEnd,
    RequestBatch,
    RequestChannel,
    RequestServer,
)
from headrace.transport.slab import spec_of
from headrace.transport.weights import WeightStore


def without_weights(spec: ActorSpec) -> ActorSpec:
    """What actors are built from that ask."""
    return replace(spec, policy=copy.deepcopy(spec.policy).to("meta"))


class InferenceServer:
    """The process that acts, from the learner's side: replaced when it dies or hangs.

    Args:
        spec: of the actors. weights: the buffer of a :class:`WeightStore`.
    """

    def __init__(self, spec: ActorSpec, weights: Tensor) -> None:
        self._timeout_s = spec.actor_timeout_s / 2  # before its actors count as silent
        assert isinstance(spec.policy, Policy)
        times = spec.max_wait_ms / 1000, min(BEAT_S, self._timeout_s / 4)
        seeding = spec.seed, spec.first_actor
        known = spec.policy, spec.device, *times, spec.processors, seeding
        self._pickled, self._weights = cloudpickle.dumps(known), weights
        self._calls = RequestChannel(calls_of(spec.policy, spec.num_actors, spec.envs_per_actor))
        self._max_restarts = spec.actor_restarts
        self._child: Child | None = None
        self._last: tuple[str, int] | None = None  # its predecessor's error, and answers before it

    @property
    def pid(self) -> int:
        """Its process id."""
        return 0 if self._child is None else self._child.pid

    @property
    def lives(self) -> bool:
        """Whether it runs."""
        return self._child is not None and self._child.process.is_alive()

    def line(self, actor: int) -> ChannelEnd:
        """What an actor asks through."""
        return self._calls.line(actor)

    def start(self) -> None:
        """Start the process."""
        self._calls.greet()
        args = self._pickled, self._calls.desk(), self._weights
        self._child = Child("headrace-inference", run_inference, *args, nice=False)

    def mend(self, num_restarts: int) -> str | None:
        """Replace the process if it is dead or silent; returns what happened then.

        Args:
            num_restarts: of actors and of this, so far.

        Raises:
            ActorFailed: they are used up, or it failed as its predecessor did.
        """
        child = self._child
        assert child is not None
        cause = ""
        if self._calls.silent_s > self._timeout_s:
            cause = f"was killed because it did nothing for {self._timeout_s:g} s"
            child.kill()
        code = child.exit_code(0.0)
        if code is None:
            return None
        said = _last_words(child.pipe)
        known = said.strip().splitlines()[-1] if said else f"ended with exit code {code}"
        cause, answers = cause or known, self._calls.num_answers
        again = bool(said) and self._last == (cause, answers)
        if again or num_restarts >= self._max_restarts:
            why = "its predecessor failed in the same way, so it isn't restarted"
            why = why if again else f"max_restarts={self._max_restarts} restarts are used up"
            told = f"\n\nIts traceback:\n{said}" if said else ""
            raise ActorFailed(f"the inference process {cause.rstrip('.')}; {why}{told}")
        self._last = cause, answers
        self.start()
        line = f"inference process: {cause} (restart {num_restarts + 1}/{self._max_restarts})"
        return f"{said}\n{line}" if said else line

    def close(self, timeout_s: float) -> None:
        """End the process; safe to call twice."""
        if self._child is not None:
            self._child.pipe.close()
            self._calls.wake()
            end_children([self._child], timeout_s)
            self._child = None
            self._calls.close()


def _last_words(pipe: Connection) -> str:
    try:
        return str(pipe.recv()).strip() if pipe.poll() else ""
    except (EOFError, OSError):
        return ""


def run_inference(pickled: bytes, desk: ChannelEnd, weights: Tensor, pipe: Connection) -> None:
    """What runs in the process: act for whoever asks, until the learner closes the pipe or dies.

    Args:
        pickled: policy, device, timeout in seconds, seconds between heartbeats, processors, and
            (seed of the run, number of its first actor), by cloudpickle.
        weights: the buffer of a :class:`WeightStore`.
    """
    try:
        policy, device, max_wait_s, beat_s, processors, seeding = cloudpickle.loads(pickled)
        stay_on(processors)
        seed_global_generators(seeding[0], "inference", seeding[1])
        push_nobody_aside()  # actors that step, whose calls then come together
        full_float32(device)
        _serve(policy.to(device), RequestServer(desk, beat_s), weights, max_wait_s, pipe)
    except BaseException:
        pipe.send(traceback.format_exc())
        sys.exit(1)


def _serve(
    policy: Policy, server: RequestServer, weights: Tensor, max_wait_s: float, pipe: Connection
) -> None:
    state, version = policy_weights(policy), -1
    store, asked = WeightStore(spec_of(state), weights), None
    while not pipe.poll():
        if asked is not None and (news := store.pull(version, state)) is not None:
            version, _ = news
        with policy.still(), torch.inference_mode():
            while not pipe.poll():
                asked = server.take(max_wait_s) if asked is None else asked
                if asked is None:
                    continue
                if int(asked.rows["version"].max()) > version:
                    break  # the copy of the weights is of no use any more
                server.answer(asked, _act(policy, asked))
                asked = None


def _act(policy: Policy, asked: RequestBatch) -> dict[str, object]:
    device = policy.policy_head.weight.device
    rows = tree.map_leaves(lambda x: x.to(device), asked.rows)
    params, core = policy.act(rows["inputs"], rows["first"], rows["core"])
    return tree.map_leaves(Tensor.cpu, {"params": params, "core": core})  # type: ignore[no-any-return]

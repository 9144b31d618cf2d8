"""Runs shared inference: one process holds the weights and acts for all actors of a learner.

    actor       produces: observations, state      waits for: parameters, the next state
    inference   produces: parameters, next state   waits for: observations

Batching is dynamic (Espeholt et al. 2018, section 3.1): after the first request, a batch waits for
all actors that are filling a rollout, for at most ``max_wait_ms``. The server returns parameters
of the distribution, from which the actor samples with its own noise, so a step's log-probability
is that of the weights and the precision that acted. A request names its rollout's version: these
weights act, or newer ones that another actor has requested.

Recurrent state is in shared memory with the observations, so it outlives this process.
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
from headrace.actors.restarts import counted
from headrace.actors.spec import ActorSpec
from headrace.errors import bounded
from headrace.nn.policy import Policy, policy_weights
from headrace.ops import tree
from headrace.processes import (
    Child,
    end_children,
    full_float32,
    seed_global_generators,
    set_affinity,
    use_batch_scheduling,
)
from headrace.processes.restarts import Death, RestartPolicy
from headrace.transport.request_channel import (
    BEAT_S,
    ChannelEnd,
    RequestBatch,
    RequestChannel,
    RequestServer,
)
from headrace.transport.slab import spec_of
from headrace.transport.weights import WeightStore

_NAME = "inference process"


def without_weights(spec: ActorSpec) -> ActorSpec:
    """Return the spec of actors that use shared inference."""
    return replace(spec, policy=copy.deepcopy(spec.policy).to("meta"))


class InferenceServer:
    """Supervises the inference process from the learner: restarts it when it dies or hangs.

    Args:
        spec: spec of the actors.
        weights: buffer of a :class:`WeightStore`.
    """

    def __init__(self, spec: ActorSpec, weights: Tensor) -> None:
        settings = spec.settings
        self._timeout_s = settings.actor_timeout_s / 2  # shorter than that of its actors
        assert isinstance(spec.policy, Policy)
        times = settings.max_wait_ms / 1000, min(BEAT_S, self._timeout_s / 4)
        seeding = settings.seed, spec.first_actor
        arguments = spec.policy, spec.device, *times, spec.processors, seeding
        self._pickled, self._weights = cloudpickle.dumps(arguments), weights
        self._calls = RequestChannel(
            calls_of(spec.policy, settings.num_actors, settings.envs_per_actor)
        )
        self._child: Child | None = None

    @property
    def pid(self) -> int:
        """Process id."""
        return 0 if self._child is None else self._child.pid

    @property
    def lives(self) -> bool:
        """True while the process runs."""
        return self._child is not None and self._child.is_running

    def client_end(self, actor: int) -> ChannelEnd:
        """Return an actor's end of the request channel."""
        return self._calls.client_end(actor)

    def start(self) -> None:
        """Start the process."""
        self._calls.reset_heartbeat()
        args = self._pickled, self._calls.server_end(), self._weights
        self._child = Child("headrace-inference", run_inference, *args, nice=False)

    def restart_if_dead(self, policy: RestartPolicy) -> str | None:
        """Restart the process if it is dead or silent; return a line about it.

        Raises:
            ActorFailed: the policy refuses (:meth:`RestartPolicy.restart`).
        """
        child = self._child
        assert child is not None
        if self._calls.silent_s > self._timeout_s:
            child.kill(f"killed after doing nothing for {self._timeout_s:g} s")
        cause = child.how_ended(0.0)
        if not cause:
            return None
        trace = _last_words(child.pipe)
        cause = trace.splitlines()[-1] if trace else cause
        work = counted(self._calls.num_answers, "answer")
        line = policy.restart(Death(_NAME, _NAME, cause, trace, work))
        self.start()
        return line

    def close(self, timeout_s: float) -> None:
        """Stop the process; safe to call twice."""
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
    """Run the inference process: act for all actors until the learner closes the pipe or dies.

    Args:
        pickled: policy, device, longest batch wait and heartbeat period in seconds, processors,
            and (seed of the run, number of its first actor), by cloudpickle.
        weights: buffer of a :class:`WeightStore`.
    """
    try:
        policy, device, max_wait_s, beat_s, processors, seeding = cloudpickle.loads(pickled)
        set_affinity(processors)
        seed_global_generators(seeding[0], "inference", seeding[1])
        use_batch_scheduling()  # lets actors step, so that their requests arrive together
        full_float32(device)
        _serve(policy.to(device), RequestServer(desk, beat_s), weights, max_wait_s, pipe)
    except BaseException:
        pipe.send(bounded(traceback.format_exc()))
        sys.exit(1)


def _serve(
    policy: Policy, server: RequestServer, weights: Tensor, max_wait_s: float, pipe: Connection
) -> None:
    state, version = policy_weights(policy), -1
    store, requests = WeightStore(spec_of(state), weights), None
    while not pipe.poll():
        if requests is not None and (news := store.pull(version, state)) is not None:
            version, _ = news
        with policy.frozen_weights(), torch.inference_mode():
            while not pipe.poll():
                requests = server.take(max_wait_s) if requests is None else requests
                if requests is None:
                    continue
                if int(requests.rows["version"].max()) > version:
                    break  # newer weights are needed
                server.answer(requests, _act(policy, requests))
                requests = None


def _act(policy: Policy, requests: RequestBatch) -> dict[str, object]:
    device = policy.policy_head.weight.device
    rows = tree.map_leaves(lambda x: x.to(device), requests.rows)
    params, core = policy.act(rows["inputs"], rows["first"], rows["core"])
    return tree.map_leaves(Tensor.cpu, {"params": params, "core": core})  # type: ignore[no-any-return]

"""Measures the cost of acting, learning and weight transfer with micro-benchmarks.

The benchmarks call the code of a run (``Collector.fill``, ``Learner.update``, ``WeightStore``),
each in a loop of limited time, and report medians. A second measurement with all cores busy shows
the slowdown by shared caches, memory and hyperthreads.
"""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

from headrace.actors.spec import ActorSpec
from headrace.config import Config
from headrace.errors import ConfigError, EnvironmentFault
from headrace.nn.policy import policy_weights
from headrace.processes import Child, end_children, keep_freed_memory, num_cores, torch_threads
from headrace.studies.plan.parts import ActorBenchmark, LearnerBenchmark, actor_spec
from headrace.studies.stopwatch import BlockTimer
from headrace.transport.slab import num_bytes, spec_of

_READY_S = 60.0  # timeout for a busy process to start or to respond
_TURNS = 5  # alternations of measuring alone and with all cores busy


@dataclass(frozen=True)
class MeasuredCosts:
    """Measured medians, in seconds unless stated otherwise."""

    engine: str  # of the vector environment
    env_step_s: float  # one step of all environments of an actor, random actions
    inference_s: float  # policy and sampling for all of them
    acting_s: float  # one rollout, everything included except fetching weights
    acting_cv: float  # deviation of acting_s, relative to its mean
    acting_cores: float  # busy cores while acting; below 1 if environments wait
    acting_crowding: float  # slowdown factor with all cores acting
    update_s: float  # one batch: gathering, all optimiser steps, bookkeeping, publishing
    update_cv: float
    update_cores: float
    update_crowding: float  # slowdown factor while actors act on the other cores
    publish_s: float  # part of update_s for publishing
    pull_s: float  # an actor's copy of the weights
    valid_share: float  # share of steps that are transitions; the others are reset steps
    rollout_bytes: int
    weights_bytes: int
    cores: int

    @property
    def summary(self) -> str:
        """Summary of the costs in one line."""
        return (
            f"engine {self.engine}: environments {_ms(self.env_step_s)} and inference "
            f"{_ms(self.inference_s)} per step of an actor; a rollout {_ms(self.acting_s)} "
            f"(deviation {self.acting_cv:.0%}) on {self.acting_cores:.2f} cores, "
            f"{self.acting_crowding:.2f} x with all cores acting; "
            f"an update {_ms(self.update_s)} on {self.update_cores:.2f} cores, "
            f"{self.update_crowding:.2f} x while actors act; publishing {_ms(self.publish_s)}, "
            f"pulling {_ms(self.pull_s)} ({self.weights_bytes / 1e6:,.2f} MB)"
        )


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"


def measure(config: Config, seconds: float = 4.0) -> MeasuredCosts:
    """Measure the costs of a run with the code of its actor and learner.

    Args:
        config: config of one learner, with its number of actors.
        seconds: approximate duration, excluding the creation of environments and processes. Calls
            that take longer than their share are made three times; rollouts are cut short.

    Raises:
        ConfigError: the environment can't be created, or plans don't support the config.
    """
    if config.algo.learns_in_actors or config.transport != "shm":
        raise ConfigError(
            f"{config.algo_name} with transport={config.transport!r} can't be planned: plans are "
            "for actors and learners in separate processes (appo, impala, ppo …; shm)"
        )
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch_threads(1))
        keep_freed_memory()
        spec = actor_spec(config)
        acting = ActorBenchmark(spec)
        stack.callback(acting.close)
        learning = LearnerBenchmark(config, spec, acting)
        stack.callback(learning.close)
        part, free = seconds / 10, num_cores() - config.resolved_learner_threads
        env_step_s, inference_s = acting.env_step_s(part), acting.inference_s(part / 2)
        alone, update = acting.measure(2 * part), learning.measure(2 * part)
        acting_crowding = _crowding(spec, num_cores() - 1, acting.measure, 2 * part)
        update_crowding = _crowding(spec, free, learning.measure, 2 * part)
        publish_s, pull_s = learning.weights_s(part / 4)
        return MeasuredCosts(
            engine=acting.engine,
            env_step_s=env_step_s,
            inference_s=inference_s,
            acting_s=alone.wall_s * config.fragment_length,
            acting_cv=alone.cv,
            acting_cores=alone.cores,
            acting_crowding=acting_crowding,
            update_s=update.wall_s,
            update_cv=update.cv,
            update_cores=update.cores,
            update_crowding=update_crowding,
            publish_s=publish_s,
            pull_s=pull_s,
            valid_share=acting.valid_share,
            rollout_bytes=num_bytes(spec.layout()),
            weights_bytes=num_bytes(spec_of(policy_weights(spec.policy))),
            cores=num_cores(),
        )


# -- with all cores busy ---------------------------------------------------------------------------


def _crowding(
    spec: ActorSpec, num_others: int, measure: Callable[[float], BlockTimer], seconds: float
) -> float:
    """Return the slowdown of a task while others act concurrently, each on its own core.

    Both are measured alternately, because the speed of a machine drifts.
    """
    if num_others < 1 or spec.settings.engine == "async":
        return 1.0
    ratios = []
    with _busy_actors(spec, num_others) as switch:
        for _ in range(_TURNS):
            times = []
            for busy in (False, True):
                switch(busy)
                times.append(measure(seconds / (2 * _TURNS)).wall_s)
            ratios.append(times[1] / times[0])
    return max(1.0, statistics.median(ratios))


@contextlib.contextmanager
def _busy_actors(spec: ActorSpec, count: int) -> Iterator[Callable[[bool], None]]:
    """Run processes that act on request, inside the block."""
    import cloudpickle

    pickled, children = cloudpickle.dumps(spec), list[Child]()
    try:
        for i in range(count):
            children.append(Child(f"headrace-busy-{i}", _act, pickled))
        ends = [child.pipe for child in children]

        def switch(busy: bool) -> None:
            try:
                for end in ends:
                    end.send(busy)
                for end in ends:
                    if not end.poll(_READY_S):
                        raise TimeoutError(f"a busy process didn't respond within {_READY_S:g} s")
                    end.recv()
            except (EOFError, ConnectionError) as error:
                raise EnvironmentFault("a busy process ended during the measurement") from error

        yield switch
    finally:
        end_children(children)


def _act(pickled: bytes, pipe: Connection) -> None:
    """Act or pause as the pipe commands, until it is closed."""
    import cloudpickle

    acting, busy = ActorBenchmark(cloudpickle.loads(pickled)), False
    with contextlib.suppress(EOFError):
        while True:
            if pipe.poll(0.0 if busy else None):
                busy = pipe.recv()
                pipe.send(busy)
            else:
                acting.fill()
    acting.close()

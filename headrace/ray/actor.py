"""Runs an actor in a Ray actor's process, for the fleet in ``fleet.py``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import cloudpickle
import torch

from headrace.actors.actor import Actor
from headrace.actors.restarts import last_words
from headrace.actors.spec import ActorSpec, Memory
from headrace.nn.policy import policy_weights
from headrace.processes import (
    keep_freed_memory,
    seed_global_generators,
    unblock_signals_for_children,
)
from headrace.processes.pickling import missing_module_message
from headrace.ray.process import other_version, process_class
from headrace.transport.queue import NUM_HEADER_FIELDS, Header
from headrace.ray.rollout_queue import FailedCall, LatestWeights
from headrace.transport.slab import Slab, spec_of

_WAITING = Header._fields.index("waiting_ns")


class RemoteActor:
    """An actor in a Ray actor's process, with its own end of the queue.

    Args:
        pickled: pickled :class:`ActorSpec` of all actors.
        index, generation, orders: see :class:`Actor` and :class:`Memory`.
    """

    def __init__(
        self, pickled: bytes, index: int, generation: int, orders: tuple[bytes, ...] = ()
    ) -> None:
        keep_freed_memory()
        spec: ActorSpec = cloudpickle.loads(pickled)
        spec = replace(spec, settings=replace(spec.settings, num_actors=1, slots_per_actor=1))
        self._slab = Slab(spec.layout(), 1, NUM_HEADER_FIELDS)
        self.weights = LatestWeights(spec_of(policy_weights(spec.policy)))
        memory = Memory(self._slab.buffer, self.weights, orders=orders)
        self._orders: list[bytes] = []
        seed_global_generators(spec.settings.seed, "actor", spec.first_actor + index, generation)
        self._actor = Actor(spec, index, generation, self, memory)
        self._ended_ns, self._message = time.monotonic_ns(), b""

    def order(self, text: bytes) -> None:
        """Queue an environment change, which the actor receives with its next slot."""
        self._orders.append(text)

    def orders(self) -> list[bytes]:
        """See :class:`~headrace.transport.queue.ActorPort`."""
        orders, self._orders = self._orders, []
        return orders

    def acquire(self, timeout_s: float) -> int:
        """Return the only slot."""
        return 0

    def commit(self, slot: int, message: bytes = b"") -> None:
        """Keep the message; the result of the call delivers the slot."""
        self._message = message

    def run(self, header: Header) -> Any:
        """Fill the slot; return its header and tree as a flat uint8 array, and the message.

        Args:
            header: header of the rollout that was in the slot.
        """
        begun_ns = time.monotonic_ns()
        self._slab.headers[0][:] = header
        self._actor.run_once()
        self._slab.headers[0][_WAITING] = begun_ns - self._ended_ns
        self._ended_ns = time.monotonic_ns()
        buffer, message, self._message = self._slab.buffer.numpy(), self._message, b""
        return (buffer, message) if message else buffer

    def close(self) -> None:
        """Close the environments."""
        self._actor.close()


def actor_class() -> type:
    """Return the class of Ray actors."""

    class HeadraceActor(process_class()):  # type: ignore[misc]
        def __init__(self) -> None:
            self.actor: Any = None
            self.leaving = False

        def begin(self, version: str, *args: Any) -> Any:
            from headrace.ray import actor as ray_actor

            made = ray_actor.begin(version, *args)
            if isinstance(made, tuple):  # Failed
                return made
            self.actor = made
            return None

        def run(self, header: Any, newest: Any) -> Any:
            from headrace.ray import actor as ray_actor

            return None if self.leaving else ray_actor.run(self.actor, header, newest)

        def order(self, text: bytes) -> None:
            if self.actor is not None:
                self.actor.order(text)

        def offer(self, newest: Any) -> None:
            if self.actor is not None:
                self.actor.weights.offer(newest)

        def cut(self, version: int) -> None:
            if self.actor is not None:
                self.actor.weights.cut(version)

        def leave(self) -> None:
            self.leaving = True

        def close(self) -> None:
            if self.actor is not None:
                self.actor.close()

    return HeadraceActor


def begin(version: str, *args: Any) -> RemoteActor | FailedCall:
    """Create an actor in a Ray process.

    Args:
        version: headrace version of the learner.
        args: arguments of :class:`RemoteActor`.
    """
    if words := other_version(version, "at the learner"):
        return FailedCall(words, False)
    torch.set_num_threads(1)
    unblock_signals_for_children()
    try:
        return RemoteActor(*args)
    except ModuleNotFoundError as error:
        return FailedCall(missing_module_message(error), False)
    except Exception as error:
        return FailedCall(last_words(error), False)


def run(actor: RemoteActor, header: Header, newest: Any) -> Any:
    """Fill and return a slot of an actor in a Ray process, or return the failure."""
    torch.set_num_threads(1)  # of this thread
    try:
        actor.weights.offer(newest)
        return actor.run(header)
    except Exception as error:
        return FailedCall(last_words(error))

"""Runs an actor in a Ray actor's process, for the fleet in ``fleet.py``."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import cloudpickle
import torch

from headrace.actors.actor import Actor, warn_once_per_run
from headrace.actors.restarts import last_words
from headrace.actors.spec import ActorSpec, Memory
from headrace.nn.policy import policy_weights
from headrace.processes import keep_freed_memory, seed_global_generators
from headrace.processes.pickling import missing_module_message
from headrace.ray.process import set_up_process
from headrace.ray.rollout_queue import FailedCall, LatestWeights
from headrace.transport.queue import NUM_HEADER_FIELDS, Header
from headrace.transport.slab import Slab, spec_of

_WAITING = Header._fields.index("waiting_ns")


class RemoteActor:
    """An actor in a Ray actor's process, with its own end of the queue.

    Args:
        version: headrace version of the learner.
        pickled: pickled :class:`ActorSpec` of all actors.
        index, generation, orders: see :class:`Actor` and :class:`Memory`.
    """

    def __init__(
        self,
        version: str,
        pickled: bytes,
        index: int,
        generation: int,
        orders: tuple[bytes, ...] = (),
    ) -> None:
        self.problem: FailedCall | None = None
        self._leaving = False
        self._orders: list[bytes] = []
        if words := set_up_process(version, "at the learner"):
            self.problem = FailedCall(words, False)
            return
        try:
            self._open(pickled, index, generation, orders)
        except ModuleNotFoundError as error:
            self.problem = FailedCall(missing_module_message(error), False)
        except Exception as error:
            self.problem = FailedCall(last_words(error), False)

    def _open(self, pickled: bytes, index: int, generation: int, orders: tuple[bytes, ...]) -> None:
        keep_freed_memory()
        spec: ActorSpec = cloudpickle.loads(pickled)
        spec = replace(spec, settings=replace(spec.settings, num_actors=1, slots_per_actor=1))
        self._slab = Slab(spec.layout(), 1, NUM_HEADER_FIELDS)
        self._weights = LatestWeights(spec_of(policy_weights(spec.policy)))
        memory = Memory(self._slab.buffer, self._weights, orders=orders)
        warn_once_per_run(spec, index, generation)
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

    def run(self, header: Header, newest: Any) -> Any:
        """Fill the slot; return its header and tree as a flat uint8 array, and the message.

        Args:
            header: header of the rollout that was in the slot.
            newest: newest weights, see :meth:`offer`.

        Returns:
            the array, or a pair of array and message; a :class:`FailedCall`; None after ``leave``.
        """
        if self._leaving:
            return None
        torch.set_num_threads(1)  # of this thread
        begun_ns = time.monotonic_ns()
        try:
            self._weights.offer(newest)
            self._slab.headers[0][:] = header
            self._actor.run_once()
        except Exception as error:
            return FailedCall(last_words(error))
        self._slab.headers[0][_WAITING] = begun_ns - self._ended_ns
        self._ended_ns = time.monotonic_ns()
        buffer, message, self._message = self._slab.buffer.numpy(), self._message, b""
        return (buffer, message) if message else buffer

    def offer(self, newest: Any) -> None:
        """See :meth:`LatestWeights.offer`; called from another thread."""
        self._weights.offer(newest)

    def cut(self, version: int) -> None:
        """See :meth:`LatestWeights.cut`; called from another thread."""
        self._weights.cut(version)

    def leave(self) -> None:
        """Fill no more slots; called from another thread."""
        self._leaving = True

    def close(self) -> None:
        """Close the environments."""
        self._actor.close()

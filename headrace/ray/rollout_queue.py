"""Transports rollouts through Ray's object store, as results of remote calls.

    actor a, on any node                               learner
      run      <---- header, newest weights, a call --   release / connect
      (fills its own slot)
      result   ----- header and tree, one array ----->   take
      offer    <---- newer weights, another call ----    publish, if the actor has calls queued

    actor    produces: filled slots    waits for: calls      unblocked by: a call, the job's end
    learner  produces: calls           waits for: results    unblocked by: a result, a death

An actor's calls run in order, one for each of its open slots. Weights are put into the store once
per version; a call carries a reference, and the actor fetches the weights when due. Results are not
copied: a slot of the learner is a view of the store until it is released.
"""

from __future__ import annotations

import ctypes
import time
import warnings
from collections import deque
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import torch

from headrace.errors import WorkerFailed
from headrace.ops import tree
from headrace.processes.running_clock import running_s
from headrace.ray.connection import RayCluster, fetch
from headrace.ray.process import CallFailed, Home
from headrace.transport.queue import NUM_HEADER_FIELDS, Header, PeerDied
from headrace.transport.slab import Slab, views
from headrace.transport.slots import Slots

_FETCH_S = 60.0  # timeout for objects in the store or on their way there
_LOST_S = 1.0  # timeout for the results of a dead actor's calls
_COMMITTED = Header._fields.index("committed_ns")


class FailedCall(NamedTuple):
    """Result of a call that raised; ``words`` is the message, usually a traceback."""

    words: str
    begun: bool = True  # False: the environments could not be made


class ArrivedRollouts:
    """Slots, like a slab's, whose trees are in the object store."""

    def __init__(self, spec: Any, num_slots: int) -> None:
        self._spec = spec
        self._arrays: list[np.ndarray | None] = [None] * num_slots
        self.headers = np.full((num_slots, NUM_HEADER_FIELDS), -1, np.int64)
        self.trees: list[Any] = [None] * num_slots

    def arrive(self, slot: int, array: np.ndarray) -> None:
        """Store a slot's header and tree, given as a read-only uint8 array."""
        with warnings.catch_warnings():  # torch warns that the array is read-only
            warnings.simplefilter("ignore")
            whole = Slab(self._spec, 1, NUM_HEADER_FIELDS, torch.from_numpy(array))
        self.headers[slot][:] = whole.headers[0]
        self.headers[slot][_COMMITTED] = time.monotonic_ns()  # this machine's clock
        self.trees[slot], self._arrays[slot] = whole.trees[0], array

    def poison(self, slot: int) -> None:
        """Drop a slot's tree."""
        self.trees[slot] = self._arrays[slot] = None

    def keep(self) -> None:
        """Leak all arrays: after the store is gone, freeing them would kill the process."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._arrays))
        self._arrays = [None] * len(self._arrays)


class _Version(NamedTuple):
    version: int
    epoch: int
    ref: list[Any]  # a list keeps Ray from fetching it before each call


class RayQueue:
    """Learner's end of the queue, and its weights, for Ray actors (``RemoteActor``).

    Args:
        slots: slots over ``arrivals``, with ``poison``.
        weights: spec of the tree of weights.
    """

    def __init__(
        self, cluster: RayCluster, slots: Slots, arrivals: ArrivedRollouts, weights: Any
    ) -> None:
        self._cluster, self.slots, self._arrivals = cluster, slots, arrivals
        self._ray = cluster.api
        self._flat = Slab(weights, 1, 0)
        self._newest: _Version | None = None
        self._actors: dict[int, Any] = {}
        self._calls: dict[int, deque[tuple[Any, int | None]]] = {}  # (reference, slot)
        self.homes: dict[int, Home | None] = {}  # None: it waits for a node
        self.since_s: dict[int, float] = {}  # time of its start, or of its placement on a node
        self.gaps: dict[int, float] = {}  # seconds without rollouts of restarted actors
        self._last_active_s: dict[int, float] = {}  # time of a dead actor's last rollout or start
        for actor in range(slots.num_actors):
            slots.leave(actor)

    def check_store(self) -> None:
        """Raise WorkerFailed if this node's object store is gone."""
        try:
            self._cluster.check_here()
        except WorkerFailed:
            self._arrivals.keep()
            raise

    # -- weights --------------------------------------------------------------------------------

    def publish(self, version: int, epoch: int, weights: Any) -> None:
        """See :meth:`WeightStore.publish`; also notifies actors with queued calls."""
        if self._newest is not None and version <= self._newest.version:
            raise ValueError(f"version {version} was published after {self._newest.version}")
        tree.map_leaves(lambda to, x: to.copy_(x.detach()), self._flat.trees[0], weights)
        self.check_store()
        ref = self._ray.put(self._flat.buffer.numpy())
        self._newest = _Version(version, epoch, [ref])
        for actor, remote in self._actors.items():
            if len(self.slots.open(actor)) > 1:  # otherwise its only call is already running
                remote.call.options(concurrency_group="offers").remote("offer", self._newest)

    def latest(self) -> tuple[int, int] | None:
        """Return (version, epoch) of the current weights; None before the first publication."""
        return None if self._newest is None else self._newest[:2]

    def cut(self, version: int) -> None:
        """See :meth:`WeightStore.cut`; may be called from another thread."""
        for remote in list(self._actors.values()):
            remote.call.options(concurrency_group="offers").remote("cut", version)

    # -- rollouts -------------------------------------------------------------------------------

    def connect(self, actor: int, remote: Any, begun: Any) -> None:
        """Start calling a Ray actor for its slots as soon as it is ready.

        Args:
            begun: references to its first results: its location, then None when it is ready.
        """
        self._actors[actor], self.homes[actor] = remote, None
        self._calls[actor] = deque((ref, None) for ref in begun)
        self.since_s[actor] = time.monotonic()

    def _grant(self) -> None:
        while (slot := self.slots.grant()) is not None:
            self._send(self.slots.owner(slot), slot)

    def _send(self, actor: int, slot: int) -> None:
        call = self._actors[actor].call.remote("run", self.slots.header(slot), self._newest)
        self._calls[actor].append((call, slot))

    def take(self, count: int, timeout_s: float, task: int = 0) -> list[int]:
        """See :class:`~headrace.transport.queue.RolloutQueue`."""
        return self.slots.wait(count, timeout_s, self._receive, task)

    def _receive(self, timeout_s: float) -> None:
        """Process the results that have arrived, or wait for the first."""
        self.check_store()
        waiting = {calls[0][0]: actor for actor, calls in self._calls.items() if calls}
        for ref in self._cluster.arrived(list(waiting), timeout_s):
            self._note(waiting[ref], ref)

    def _note(self, actor: int, ref: Any) -> None:
        """Process the result of an actor's oldest pending call.

        Raises:
            PeerDied: the call failed; the actor's other calls are lost as well.
        """
        self.check_store()
        try:
            result = self._cluster.result(ref, _FETCH_S)
        except CallFailed as failure:
            self._lose(actor, str(failure))
        if isinstance(result, FailedCall):
            self._lose(actor, "", *result)
        _, slot = self._calls[actor].popleft()
        if slot is None and result is not None:
            self.homes[actor], self.since_s[actor] = Home(*result), time.monotonic()
        elif slot is None:
            self.slots.join(actor)
            self._grant()
        else:
            array, message = result if isinstance(result, tuple) else (result, b"")
            self._arrivals.arrive(slot, array)
            self.slots.commit(slot, message)
            if actor in self._last_active_s:
                self.gaps[actor] = running_s() - self._last_active_s.pop(actor)

    def _lose(self, actor: int, cause: str, words: str = "", begun: bool = True) -> None:
        if self.slots.is_present(actor):
            self._last_active_s[actor] = self.slots.last_active_s(actor)
            refs = [ref for ref, _ in self._calls[actor]]
            self.slots.lost += self._num_lost(refs[:1] if words else refs)
        del self._actors[actor], self._calls[actor]
        self.slots.leave(actor)
        self._grant()  # to other actors
        raise PeerDied(actor, words, cause, begun) from None

    def _num_lost(self, refs: list[Any]) -> int:
        """Count the lost rollouts of a dead actor's calls.

        Args:
            refs: references to the results, in the order of the calls.
        """
        for number, ref in enumerate(refs, 1):
            try:
                self._ray.get(ref, timeout=_LOST_S)
            except (self._ray.exceptions.RayActorError, self._ray.exceptions.RayTaskError):
                return number
            except Exception:  # this slot had been filled
                continue
        return len(refs)

    def release(self, slots: list[int]) -> None:
        self.check_store()  # releasing a slot frees arrays in Ray's store
        for slot in slots:
            self.slots.release(slot)
        self._grant()

    def close(self) -> None:
        """Stop calling actors, and drop all weights and slots in the store."""
        self._actors.clear()
        self._calls.clear()
        self._newest = None


class LatestWeights:
    """Newest weights offered to an actor, in its process; has the interface of a WeightStore.

    Args:
        spec: spec of the tree of weights.
    """

    def __init__(self, spec: Any) -> None:
        self._spec, self._lock = spec, Lock()
        self._newest: _Version | None = None
        self._cut = -1

    def offer(self, newest: _Version) -> None:
        """Replace the newest weights, unless the offered ones are older."""
        with self._lock:  # called from two threads
            if self._newest is None or newest.version > self._newest.version:
                self._newest = _Version(*newest)

    def latest(self) -> tuple[int, int] | None:
        """See :meth:`WeightStore.latest`."""
        return None if self._newest is None else self._newest[:2]

    def pull(self, newer_than: int, into: Any) -> tuple[int, int] | None:
        """See :meth:`WeightStore.pull`."""
        newest = self._newest
        if newest is None or newest.version <= newer_than:
            return None
        with warnings.catch_warnings(), torch.no_grad():  # as for :meth:`ArrivedRollouts.arrive`
            warnings.simplefilter("ignore")
            flat = torch.from_numpy(fetch(newest.ref[0], _FETCH_S))
            tree.map_leaves(torch.Tensor.copy_, into, views(flat, self._spec))
        return newest[:2]

    def is_cut(self, version: int) -> bool:
        """See :meth:`WeightStore.is_cut`."""
        return self._cut >= version

    def cut(self, version: int) -> None:
        """See :meth:`WeightStore.cut`."""
        self._cut = max(self._cut, version)

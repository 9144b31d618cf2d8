"""Starts and supervises actors on a Ray cluster.

    trainer ──► Ray ──► actor 0 … actor n, spread over the nodes (``actor.py``)
       │                    │
       └── calls and results, weights in Ray's object store (``rollout_queue.py``)

Each is an ordinary actor with its own slot, which remote calls fill. Ray stops the actors when the
trainer exits, for whatever reason.
"""

from __future__ import annotations

import time
from typing import Any

import cloudpickle

from headrace.actors.restarts import Restarts, silence
from headrace.actors.spec import ActorSpec
from headrace.errors import ActorFailed
from headrace.nn.policy import policy_weights
from headrace.ray.connection import RayCluster, connect
from headrace.ray.process import headrace_version, process_class
from headrace.ray.rollout_queue import ArrivedRollouts, RayQueue
from headrace.transport.queue import PeerDied
from headrace.transport.slab import spec_of
from headrace.transport.slots import Slots

_CLOSE_S = 5.0
_START_S = 60.0  # startup of a process on a node with free cores: it imports torch
_NODE_DIED = "node has died"  # in Ray's message about an actor that died with its node


class RayFleet:
    """Starts actors on a cluster, replaces those that die, and stops them all.

    Args:
        spec: spec of the actors.
        cluster: connection to the cluster, closed at the end.
    """

    def __init__(self, spec: ActorSpec, queue: RayQueue, cluster: RayCluster) -> None:
        self._spec, self._queue, self._cluster = spec, queue, cluster
        self.restarts = Restarts(spec.settings.actor_restarts)
        self._pickled = cluster.api.put(cloudpickle.dumps(spec))
        self._least = spec.settings.min_actors or spec.settings.num_actors
        self._share = cluster.share(spec.num_places or self._least)
        groups = {"offers": 1}
        options = {"num_cpus": self._share, "concurrency_groups": groups}
        process = process_class("HeadraceActor", "headrace.ray.actor:RemoteActor")
        self._kind = cluster.kind(process, scheduling_strategy="SPREAD", **options)
        self._remotes: dict[int, Any] = {}
        self._hung: set[int] = set()
        self._reported_count, self._began = spec.settings.num_actors, False
        self._orders: list[bytes] = []  # all so far, sent to actors that start later

    def order(self, text: bytes) -> None:
        """Send an order to all actors, and to those that replace them later."""
        self._orders.append(text)
        for remote in self._remotes.values():
            remote.call.remote("order", text)

    def start(self) -> None:
        """Start ``min_actors`` actors; they come up while the learner waits.

        The others start after them, so that no learner takes another's cores.
        """
        self._start(self._least)

    def _start(self, count: int) -> None:
        for actor in range(len(self._remotes), count):
            self._start_one(actor)

    def _start_one(self, actor: int) -> None:
        remote = self._kind.remote()
        args = headrace_version(), self._pickled, actor, self.restarts.count, tuple(self._orders)
        self._remotes[actor] = remote
        self._queue.connect(actor, remote, [remote.home.remote(), remote.begin.remote(*args)])

    def pids(self) -> list[int]:
        """Return the process ids, each on its own machine, of the actors that have started."""
        return [home.pid for home in self._queue.homes.values() if home is not None]

    def replace(self, death: PeerDied) -> str:
        """Start a new actor for a dead one; return a line about it.

        Raises:
            ActorFailed, NonFinite: see :meth:`Restarts.judge`.
            WorkerFailed: the cluster is gone.
        """
        actor, home = death.actor, self._queue.homes[death.actor]
        self._kill(self._remotes.pop(actor))
        if actor in self._hung:
            self._hung.discard(actor)
            death.cause = silence(self._spec.settings.actor_timeout_s)
            death.traceback = ""
        elif not death.traceback:
            self._cluster.check()
        name = f"actor {actor} ({'not yet on a node' if home is None else home})"
        node = home.node if home is not None and _NODE_DIED in death.cause else ""
        line = self.restarts.judge(death, self._queue.slots.delivered(actor), name, node)
        self._start_one(actor)
        return line

    def supervise(self) -> str | None:
        """Check the cluster; return lines about recovered actors and changed numbers of actors.

        Raises:
            WorkerFailed: the cluster is gone.
        """
        self._queue.check_store()
        looked, present = self._cluster.check(), self._queue.slots.present
        if present >= self._least:
            self._began = True
            self._start(self._spec.settings.num_actors)
        lines = [
            f"actor {actor} ({self._queue.homes[actor]}) delivers again, {seconds:.1f} s after its "
            "predecessor's last rollout"
            for actor, seconds in self._queue.gaps.items()
        ]
        self._queue.gaps.clear()
        is_growing = self._spec.settings.min_actors and self._began and looked
        if is_growing and present != self._reported_count:
            self._reported_count = present
            total = self._spec.settings.num_actors
            lines.append(f"{self._reported_count} of {total} actors are running")
        return "\n".join(lines) or None

    def kill_silent(self, timeout_s: float) -> None:
        """Kill actors that had work for ``timeout_s`` and delivered nothing.

        Raises:
            ActorFailed: fewer than ``min_actors`` have a node, and no node has free cores or no
                actor has started in a minute.
        """
        slots, homes, now = self._queue.slots, self._queue.homes, time.monotonic()
        for actor, remote in self._remotes.items():
            began = slots.is_present(actor)
            waited_s = slots.silent_s(actor) if began else now - self._queue.since_s[actor]
            if waited_s <= timeout_s or actor in self._hung:
                continue
            if homes[actor] is not None:
                if began or waited_s > _START_S:
                    self._hung.add(actor)
                    self._kill(remote)
            elif slots.present < self._least and self._is_late(waited_s):
                raise ActorFailed(
                    f"actor {actor} didn't start within {timeout_s:g} s (actor_timeout_s): "
                    f"{self._cluster.free_cores:g} of the {self._cluster.cores:g} cores of the Ray "
                    "cluster are free; add nodes, or lower num_actors or min_actors"
                )

    def _is_late(self, waited_s: float) -> bool:
        free = self._cluster.free_cores
        others_run = (
            self._cluster.cores - free > self._share * len(self._remotes) + 0.001
        )  # by others
        return waited_s > _START_S or (others_run and free < self._share)

    def _kill(self, remote: Any) -> None:
        self._cluster.api.kill(remote, no_restart=True)

    def close(self) -> None:
        """Stop all actors, and the cluster if it was started here; safe to call twice."""
        self._queue.close()
        ray, remotes = self._cluster.api, list(self._remotes.values())
        self._remotes.clear()
        if remotes and ray.is_initialized():
            for remote in remotes:
                remote.call.options(concurrency_group="offers").remote("leave")
            closed = [remote.call.remote("close") for remote in remotes]
            ray.wait(closed, num_returns=len(closed), timeout=_CLOSE_S)
            for remote in remotes:
                self._kill(remote)
        self._cluster.close()


def open_ray(spec: ActorSpec) -> tuple[Slots, ArrivedRollouts, RayQueue, RayFleet]:
    """Create slots, queue and fleet for actors on a Ray cluster."""
    settings = spec.settings
    cluster = connect(str(settings.cluster), settings.num_actors)
    arrivals = ArrivedRollouts(spec.layout(), spec.num_slots)
    sizes = settings.num_actors, settings.slots_per_actor
    slots = Slots(
        arrivals, *sizes, settings.algo.max_lag == 0, True, settings.num_credits, spec.num_tasks
    )
    queue = RayQueue(cluster, slots, arrivals, spec_of(policy_weights(spec.policy)))
    return slots, arrivals, queue, RayFleet(spec, queue, cluster)

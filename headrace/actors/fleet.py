"""Starts and supervises actor processes on this machine.

    trainer ──► fork server (has torch already) ──► actor 0 … actor n
       │                                                 │
       └── pipe per actor, shared slots and weights ─────┘

The fork server is the standard library's. Children ignore Ctrl-C (the trainer handles it) and
exit when the trainer is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace import processes
from headrace.actors.restarts import Restarts, silence
from headrace.processes import Child, end_children, kill_descendants_of_dead

if TYPE_CHECKING:
    from headrace.actors.inference_server import InferenceServer
    from headrace.actors.spec import ActorSpec, Memory
    from headrace.transport.queue import PeerDied
    from headrace.transport.shm import ShmQueue

_PRELOAD = "headrace.actors.actor"


def start_fork_server() -> None:
    """Start importing torch in the fork server and return at once; safe to call repeatedly."""
    processes.start_fork_server(_PRELOAD)


class Fleet:
    """Starts actors, replaces those that die, and stops them all.

    Args:
        inference: shared inference server, also supervised; None: each actor has the policy.
    """

    def __init__(
        self,
        spec: ActorSpec,
        queue: ShmQueue,
        memory: Memory,
        inference: InferenceServer | None = None,
    ) -> None:
        import cloudpickle

        from headrace.nn.weightless import weightless_copy

        spec, self._inference = replace(spec, policy=weightless_copy(spec.policy)), inference
        self._spec = bytearray(cloudpickle.dumps(spec))
        self._num_actors = spec.settings.num_actors
        self._timeout_s = spec.settings.actor_timeout_s
        self.restarts = Restarts(spec.settings.actor_restarts)
        self._queue, self._memory = queue, memory
        self._children: dict[int, Child] = {}
        self._orders: list[bytes] = []  # all so far, sent to actors that start later

    def order(self, text: bytes) -> None:
        """Send an order to all actors, and to those that replace them later."""
        self._orders.append(text)
        self._queue.order(text)
        self._kill_unresponsive()

    def start(self) -> None:
        """Start every actor."""
        start_fork_server()
        if self._inference is not None:
            self._inference.start()
        for actor in range(self._num_actors):
            self._start_one(actor)

    def _start_one(self, actor: int) -> None:
        from headrace.actors.actor import run_actor

        memory = replace(self._memory, orders=tuple(self._orders))
        if self._inference is not None:
            memory = replace(memory, line=self._inference.client_end(actor))
        args = self._spec, actor, self.restarts.count, memory
        pipe = self._queue.connect(actor)
        self._children[actor] = Child(f"headrace-actor-{actor}", run_actor, *args, pipe=pipe)

    def pids(self) -> list[int]:
        """Return the process ids of the actors, by index, and then of the inference server."""
        others = [] if self._inference is None else [self._inference.pid]
        return [self._children[a].pid for a in sorted(self._children)] + others

    def replace(self, death: PeerDied) -> str:
        """Start a new process for a dead actor; return a line about it.

        Raises:
            ActorFailed, NonFinite: see :meth:`Restarts.judge`.
        """
        from headrace.actors.actor import NOT_BEGUN

        child = self._children.pop(death.actor)
        death.cause = child.how_ended() or "closed its pipe"
        death.begun = child.exit_code(0.0) != NOT_BEGUN
        child.kill()
        if child.killed_because:
            death.traceback = ""
        line = self.restarts.judge(death, self._queue.slots.delivered(death.actor))
        self._start_one(death.actor)
        return line

    def supervise(self) -> str | None:
        """Restart the inference server if it is dead or silent; return a line about it.

        Raises:
            ActorFailed: see :meth:`InferenceServer.restart_if_dead`.
        """
        if self._inference is None:
            return None
        line = self._inference.restart_if_dead(self.restarts.policy)
        if line is not None:
            self._queue.slots.reset_silence()
        return line

    def kill_silent(self, timeout_s: float) -> None:
        """Kill actors that had a free slot for ``timeout_s`` and delivered nothing.

        Descendants of dead actors are killed too, so that no process keeps a pipe open.
        """
        kill_descendants_of_dead(self._children.values())
        self._kill_unresponsive()
        for actor, child in self._children.items():
            if self._queue.slots.silent_s(actor) > timeout_s:
                child.kill(silence(timeout_s))

    def _kill_unresponsive(self) -> None:
        """Kill actors that didn't read messages for ``actor_timeout_s``."""
        for actor in self._queue.unresponsive & self._children.keys():
            self._children[actor].kill(silence(self._timeout_s))

    def close(self, timeout_s: float = 5.0) -> None:
        """Stop all actors: closed pipes first, then signals; safe to call twice."""
        self._queue.close()
        lost = self._inference is not None and not self._inference.lives
        end_children(self._children.values(), 0.0 if lost else timeout_s)
        self._children.clear()
        if self._inference is not None:  # after the actors, which need it to finish
            self._inference.close(timeout_s)

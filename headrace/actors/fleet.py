"""Actor processes of this machine: started from a process that has torch imported already.

    trainer ──► fork server (has torch already) ──► actor 0 … actor n
       │                                                 │
       └── pipe per actor, shared slots and weights ─────┘

The fork server is the standard library's. Children ignore Ctrl-C (the trainer decides) and end
themselves when the trainer is gone.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headrace import processes
from headrace.actors.restarts import HUNG, Restarts
from headrace.processes import Child, end_children, end_kin_of_dead

if TYPE_CHECKING:
    from headrace.actors.inference_server import InferenceServer
    from headrace.actors.spec import ActorSpec, Memory
    from headrace.transport.queue import PeerDied
    from headrace.transport.shm import ShmQueue

_PRELOAD = "headrace.actors.actor"


def start_fork_server() -> None:
    """Begin importing torch in the fork server; returns at once. Safe to call repeatedly."""
    processes.start_fork_server(_PRELOAD)


def begin_imports() -> None:
    """Import torch where nothing else was done yet, and start the fork server with it."""
    processes.fork_server_from_here(_PRELOAD)


class Fleet:
    """Starts actors, replaces those that die, and ends them all.

    Args:
        inference: what acts for them, which is looked after, too; None: they act themselves.
    """

    def __init__(
        self,
        spec: ActorSpec,
        queue: ShmQueue,
        memory: Memory,
        inference: InferenceServer | None = None,
    ) -> None:
        import cloudpickle

        from headrace.nn.weightless import hollow

        spec, self._inference = replace(spec, policy=hollow(spec.policy)), inference
        self._spec = bytearray(cloudpickle.dumps(spec))
        self._num_actors, self.restarts = spec.num_actors, Restarts(spec.actor_restarts)
        self._queue, self._memory = queue, memory
        self._children: dict[int, Child] = {}
        self._hung: set[int] = set()
        self._orders: list[bytes] = []  # all so far, for actors that start later

    def order(self, text: bytes) -> None:
        """Send an order to all actors, and to those that replace them later."""
        self._orders.append(text)
        self._queue.order(text)
        self._kill_deaf()

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
            memory = replace(memory, line=self._inference.line(actor))
        args = self._spec, actor, self.restarts.count, memory
        pipe = self._queue.connect(actor)
        self._children[actor] = Child(f"headrace-actor-{actor}", run_actor, *args, pipe=pipe)

    def pids(self) -> list[int]:
        """Process ids of the actors, by actor, and then of what acts for them."""
        others = [] if self._inference is None else [self._inference.pid]
        return [self._children[a].pid for a in sorted(self._children)] + others

    def replace(self, death: PeerDied) -> str:
        """Start a new process for a dead actor; returns what happened.

        Raises:
            ActorFailed, NonFinite: see :meth:`Restarts.judge`.
        """
        from headrace.actors.actor import NOT_BEGUN

        code = self._children.pop(death.actor).exit_code()
        cause = f"ended with exit code {code}"
        if death.actor in self._hung:
            self._hung.discard(death.actor)
            cause, death.traceback = HUNG, ""
        death.cause, death.begun = cause, code != NOT_BEGUN
        line = self.restarts.judge(death, self._queue.slots.delivered(death.actor))
        self._start_one(death.actor)
        return line

    def mend(self) -> str | None:
        """Replace what acts for the actors if it is dead or silent; returns what happened.

        Raises:
            ActorFailed: see :meth:`InferenceServer.mend`.
        """
        line = None if self._inference is None else self._inference.mend(self.restarts.count)
        if line is not None:
            self.restarts.count += 1
            self._queue.slots.excuse()
        return line

    def kill_silent(self, timeout_s: float) -> None:
        """Kill actors that have had a free slot for ``timeout_s`` and delivered nothing.

        What a dead one has forked goes with it, and then nobody holds its end of the pipe.
        """
        end_kin_of_dead(self._children.values())
        self._kill_deaf()
        for actor, child in self._children.items():
            if self._queue.slots.silent_s(actor) > timeout_s and actor not in self._hung:
                self._hung.add(actor)
                child.kill()

    def _kill_deaf(self) -> None:
        """Kill actors that didn't read what was sent to them for ``actor_timeout_s``."""
        for actor in self._queue.deaf & self._children.keys() - self._hung:
            self._hung.add(actor)
            self._children[actor].kill()

    def close(self, timeout_s: float = 5.0) -> None:
        """End all actors: closed pipes first, then signals; safe to call twice."""
        self._queue.close()
        lost = self._inference is not None and not self._inference.lives
        end_children(self._children.values(), 0.0 if lost else timeout_s)
        self._children.clear()
        if self._inference is not None:  # actors have ended their rollouts with it
            self._inference.close(timeout_s)

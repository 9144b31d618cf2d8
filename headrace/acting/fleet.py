"""Actor processes of this machine: started from a process that has torch imported already.

    trainer ──► fork server (imports torch once) ──► actor 0 … actor n
       │                                                 │
       └── pipe per actor, shared slots and weights ─────┘

The fork server is the standard library's. Children ignore Ctrl-C (the trainer decides) and end
themselves when the trainer is gone.
"""

from __future__ import annotations

import time
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING

from headrace.errors import ActorFailed
from headrace.process import main_hidden, process_context

if TYPE_CHECKING:
    from headrace.acting.actor import ActorSpec, Memory
    from headrace.transport.queue import PeerDied
    from headrace.transport.shm import ShmQueue

_PRELOAD = ["headrace.acting.process"]


def start_fork_server() -> None:
    """Begin importing torch in the fork server; returns at once. Safe to call repeatedly."""
    context = process_context()
    if context.get_start_method() == "forkserver":
        from multiprocessing import forkserver

        context.set_forkserver_preload(_PRELOAD)
        with main_hidden():
            forkserver.ensure_running()


class Fleet:
    """Starts actors, replaces those that die, and ends them all.

    Args:
        spec: what actors are built from, how many, and how many deaths are made good.
        queue, memory: shared with them.
    """

    def __init__(self, spec: ActorSpec, queue: ShmQueue, memory: Memory) -> None:
        import cloudpickle

        self._spec = cloudpickle.dumps(spec)
        self._num_actors, self._max_restarts = spec.num_actors, spec.actor_restarts
        self._queue, self._memory = queue, memory
        self._processes: dict[int, BaseProcess] = {}
        self._hung: set[int] = set()
        self.num_restarts = 0

    def start(self) -> None:
        """Start every actor."""
        start_fork_server()
        for actor in range(self._num_actors):
            self._start_one(actor)

    def _start_one(self, actor: int) -> None:
        from headrace.acting.process import run_actor

        pipe = self._queue.connect(actor)
        process = process_context().Process(  # type: ignore[attr-defined]
            target=run_actor,
            args=(self._spec, actor, self.num_restarts, pipe, self._memory),
            name=f"headrace-actor-{actor}",
            daemon=True,
        )
        with main_hidden():
            process.start()
        pipe.close()
        self._processes[actor] = process

    def pids(self) -> list[int]:
        """Process ids of the actors, by actor."""
        return [self._processes[a].pid or 0 for a in sorted(self._processes)]

    def replace(self, death: PeerDied) -> str:
        """Start a new process for a dead actor; returns what happened, with its traceback.

        Raises:
            ActorFailed: ``max_restarts`` is used up; carries the actor's own traceback.
        """
        process = self._processes.pop(death.actor)
        process.join(timeout=10)
        cause = f"ended with exit code {process.exitcode}"
        if death.actor in self._hung:
            self._hung.discard(death.actor)
            cause = "was killed because it delivered nothing in time"
        elif death.traceback:
            cause = death.traceback.strip().splitlines()[-1]
        if self.num_restarts >= self._max_restarts:
            raise ActorFailed(
                f"actor {death.actor} {'failed: ' if death.traceback else ''}{cause}; "
                f"max_restarts={self._max_restarts} restarts are used up"
                + (f"\n\nIts traceback:\n{death.traceback.rstrip()}" if death.traceback else "")
            )
        self.num_restarts += 1
        self._start_one(death.actor)
        line = f"actor {death.actor}: {cause} (restart {self.num_restarts}/{self._max_restarts})"
        return f"{death.traceback.rstrip()}\n{line}" if death.traceback else line

    def kill_silent(self, timeout_s: float) -> None:
        """Kill actors that have had a free slot for ``timeout_s`` and delivered nothing."""
        for actor, process in self._processes.items():
            if self._queue.silent_s(actor) > timeout_s and actor not in self._hung:
                self._hung.add(actor)
                process.kill()

    def close(self, timeout_s: float = 5.0) -> None:
        """End all actors: closed pipes first, then signals; safe to call twice."""
        self._queue.close()
        deadline = time.monotonic() + timeout_s
        for process in self._processes.values():
            process.join(timeout=max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                process.kill()
                process.join(timeout=timeout_s)
        self._processes.clear()

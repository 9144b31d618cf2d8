"""Runs several learners as child processes on this machine.

this process ──► learner 0 (rank 0: files, results) ──► its actors
     │     ╲───► learner 1 ──► its actors             all joined by headrace/distributed/ranks.py
     └── a pipe to each: receives results and heartbeats, sends "stop"
"""

from __future__ import annotations

import contextlib
import signal
import sys
from multiprocessing import connection
from typing import Any

from headrace.config import Config
from headrace.distributed.ranks import file_rendezvous
from headrace.launch.learner import learn
from headrace.processes import Child, end_children, memory_file

_GRACE_S = 2.0  # time for a process to exit after its pipe was closed


class LocalLearners:
    """One generation of learners as child processes; see :class:`Learners`.

    Args:
        config: settings of the run.
        pickled: argument of :func:`learn`.
    """

    def __init__(self, config: Config, pickled: bytes) -> None:
        self._children: list[Child] = []
        self._stack = contextlib.ExitStack()
        try:
            rendezvous = self._stack.enter_context(memory_file())
            for rank in range(config.num_learners):
                name, args = f"headrace-learner-{rank}", (pickled, rank, config.num_learners)
                child = Child(name, _run, *args, rendezvous, nice=False, daemon=False)  # has actors
                self._children.append(child)
        except BaseException:
            self.close()
            raise

    def receive(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
        open_pipes = {c.pipe: rank for rank, c in enumerate(self._children) if not c.pipe.closed}
        received: list[tuple[int, tuple[Any, ...]]] = []
        for pipe in connection.wait(list(open_pipes), timeout_s):
            rank = open_pipes[pipe]
            try:
                received.append((rank, self._children[rank].pipe.recv()))
            except (EOFError, OSError):
                self._children[rank].pipe.close()
                received.append((rank, ("gone",)))
        return received

    def send(self, rank: int, command: str, *arguments: Any) -> None:
        with contextlib.suppress(OSError, IndexError):
            self._children[rank].pipe.send((command, *arguments))

    def name(self, rank: int) -> str:
        return f"learner {rank}"

    def how_ended(self, rank: int) -> str:
        return self._children[rank].how_ended(_GRACE_S) or "closed its pipe"

    def pids(self) -> list[int]:
        return [child.pid for child in self._children]

    def wait(self, timeout_s: float) -> None:
        for child in self._children:
            child.exit_code(timeout_s)

    def close(self) -> None:
        end_children(self._children, timeout_s=0.0)
        self._children.clear()
        self._stack.close()


def _run(
    pickled: bytes, rank: int, size: int, rendezvous: str, pipe: connection.Connection
) -> None:
    """Run a learner in its process.

    Args:
        rendezvous: path of the file behind the group's store.
        pipe: pipe to the parent.
    """
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # the parent handles it
    if not learn(pickled, file_rendezvous(rendezvous, rank, size), pipe.send, pipe.recv):
        sys.exit(1)

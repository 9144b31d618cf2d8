"""Runs workers as processes of this machine with a pipe each, without network ports.

The arrays of an answer are passed in shared memory (``shared_memory.py``).
"""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import select
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Annotated, Any

import cloudpickle

from headrace.cluster_env.backends.shared_memory import ArrayReceiver, ArraySender
from headrace.cluster_env.messages import (
    Answer,
    Backend,
    Request,
    WorkerFault,
    WorkerHandle,
    WorkerSetup,
)
from headrace.processes import Child, end_children, start_fork_server, yield_to_waking_threads
from headrace.validation import ranges
from headrace.validation.fields import check_fields, settings


@settings()
@dataclass(frozen=True)
class LocalConfig:
    """Backend settings: worker processes on this machine."""

    nodes: Annotated[int, ranges.NODES] = 2
    """Number of workers, each with ``envs_per_node`` environments."""
    timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 300.0
    """Timeout in seconds, after which an unresponsive worker is killed and replaced."""
    start_timeout_s: Annotated[float, ranges.SECONDS_OR_INF] = 120.0
    """Startup timeout of a worker, in seconds."""
    max_restarts: Annotated[int, ranges.COUNT_OR_0] = 10
    """Maximum number of worker replacements, over all workers."""

    def __post_init__(self) -> None:
        check_fields(self, "LocalConfig: ")

    def open(self) -> Backend:
        """Start the backend; processes start one by one from a fork server that has imported
        torch.
        """
        start_fork_server("headrace.cluster_env.worker")
        return LocalBackend(self.timeout_s + self.start_timeout_s)


class LocalBackend:
    """Starts worker processes; ``send_timeout_s``: timeout of sending a message."""

    def __init__(self, send_timeout_s: float) -> None:
        self._send_timeout_s = send_timeout_s

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        name, pickled = f"headrace-worker-{setup.index}", cloudpickle.dumps(setup)
        child = Child(name, run_worker, pickled, daemon=False)  # environments may start processes
        _limit_writes(child.pipe, self._send_timeout_s)
        return LocalWorker(setup.index, child)

    def wait(self, nodes: list[Any], timeout_s: float) -> list[WorkerHandle]:
        if not hasattr(select, "poll"):
            by_pipe = {node.pipe: node for node in nodes}
            return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout_s)]  # type: ignore[index]
        poller = select.poll()  # a tenth of what the portable call costs in each step
        by_file = {node.pipe.fileno(): node for node in nodes}
        for file in by_file:
            poller.register(file, select.POLLIN)
        return [by_file[file] for file, _ in poller.poll(math.ceil(1000 * timeout_s))]

    def close(self, nodes: list[Any]) -> None:
        """Close the pipes, which ends the workers; kill those that remain after 5 seconds."""
        end_children(node.child for node in nodes)


class LocalWorker:
    """One worker process."""

    def __init__(self, index: int, child: Child) -> None:
        self.child, self.pipe = child, child.pipe
        self.name = f"worker {index} (process {child.pid})"
        self._receiver = ArrayReceiver()

    def send(self, request: Request) -> None:
        try:
            self.pipe.send_bytes(_dumps(tuple(request), by_value=request.method == "reset"))
        except BlockingIOError:
            self.child.kill("read no message in time")
        except (BrokenPipeError, ConnectionResetError):
            pass  # it is dead, which receive() reports

    def receive(self) -> Answer | WorkerFault:
        try:
            return self._receiver.loads(self.pipe.recv_bytes(), self.pipe)
        except (EOFError, ConnectionResetError):
            died = f"died (exit code {self.child.exit_code()})"
            return WorkerFault(self.child.killed_because or died)

    def kill(self) -> None:
        self.child.kill()
        self.pipe.close()


_pickled = functools.partial(pickle.dumps, protocol=pickle.HIGHEST_PROTOCOL)


def _dumps(message: Any, by_value: bool, dumps: Callable[[Any], bytes] = _pickled) -> bytes:
    """Pickle a message; ``by_value`` includes definitions of scripts, arrays and numbers go
    faster.
    """
    if not by_value:
        with contextlib.suppress(Exception):  # an object's pickling may raise anything
            return dumps(message)
    return cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _limit_writes(pipe: Connection, timeout_s: float) -> None:
    """Make writes raise BlockingIOError after ``timeout_s``, if a pipe is a pair of sockets."""
    if os.name != "posix":
        return
    seconds = min(timeout_s, 1e6)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def run_worker(setup: bytes, pipe: Connection) -> None:
    """Answer requests in the worker process until the head closes the pipe or dies."""
    from headrace.cluster_env.worker import Worker, fault_of

    yield_to_waking_threads()  # message to the head, whose next request waits for all workers
    with contextlib.suppress(EOFError, ConnectionError):  # the head has exited
        try:
            worker = Worker(cloudpickle.loads(setup))
            sender = ArraySender() if hasattr(os, "memfd_create") else None
            while True:
                try:
                    request = Request(*pickle.loads(pipe.recv_bytes()))
                except (EOFError, ConnectionError):
                    worker.close()
                    return
                answer = worker.handle(request)
                by_value = request.method in ("reset", "describe")
                pipe.send_bytes(_dumps(answer, by_value, sender.dumps if sender else _pickled))
                if sender is not None:
                    sender.hand_over(pipe)
                worker.prepare()
        except BaseException as error:
            pipe.send_bytes(pickle.dumps(fault_of(error)))

"""Workers as processes of this machine, with a pipe each; nothing listens on any port."""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import socket
import struct
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess

import cloudpickle

from headrace.cluster.messages import (
    Answer,
    Failure,
    Node,
    Place,
    Request,
    WorkerDied,
    WorkerSetup,
    check_limits,
)
from headrace.process import (
    die_with_parent,
    keep_freed_memory,
    main_hidden,
    process_context,
    yield_to_learner,
)


@dataclass(frozen=True)
class LocalConfig:
    """Processes on this machine."""

    nodes: int = 2
    """Workers, each with ``envs_per_node`` environments."""
    timeout_s: float = 300.0
    """A worker that doesn't answer for so long is killed and replaced."""
    start_timeout_s: float = 120.0
    """Time for a worker to come up."""
    max_restarts: int = 10
    """Deaths that are made good, all workers together."""

    def __post_init__(self) -> None:
        check_limits(self)

    def open(self) -> Place:
        """Processes are started one by one, from a fork server that imports torch once."""
        context = process_context()
        if context.get_start_method() == "forkserver":
            context.set_forkserver_preload(["headrace.cluster.worker"])
        return LocalPlace(self.timeout_s + self.start_timeout_s)


class LocalPlace:
    """Starts worker processes from the fork server, where there is one.

    Args:
        send_timeout_s: of a message to a worker that doesn't read.
    """

    def __init__(self, send_timeout_s: float) -> None:
        self._send_timeout_s = send_timeout_s

    def start(self, setup: WorkerSetup) -> Node:
        """Begin to start a worker."""
        context = process_context()
        ours, theirs = Pipe()
        process = context.Process(  # type: ignore[attr-defined]
            target=run_worker,
            args=(cloudpickle.dumps(setup), theirs),
            name=f"headrace-worker-{setup.index}",
            daemon=False,  # its environments may start processes; it ends with this one anyway
        )
        with main_hidden():
            process.start()
        theirs.close()
        _limit_writes(ours, self._send_timeout_s)
        return LocalNode(setup.index, process, ours)

    def wait(self, nodes: list[Node], timeout_s: float) -> list[Node]:
        """See :class:`~headrace.cluster.messages.Place`."""
        if not hasattr(select, "poll"):
            by_pipe = {node.pipe: node for node in _local(nodes)}
            return [by_pipe[pipe] for pipe in wait(list(by_pipe), timeout_s)]  # type: ignore[index]
        poller = select.poll()  # a tenth of what the portable call costs in each step
        by_file = {node.pipe.fileno(): node for node in _local(nodes)}
        for file in by_file:
            poller.register(file, select.POLLIN)
        return [by_file[file] for file, _ in poller.poll(math.ceil(1000 * timeout_s))]

    def close(self, nodes: list[Node]) -> None:
        """A closed pipe ends a worker; those that don't hear are killed after 5 seconds."""
        for node in _local(nodes):
            node.pipe.close()
        deadline = time.monotonic() + 5.0
        for node in _local(nodes):
            node.process.join(timeout=max(0.0, deadline - time.monotonic()))
            node.kill()


class LocalNode:
    """One process."""

    def __init__(self, index: int, process: BaseProcess, pipe: Connection) -> None:
        self.process, self.pipe = process, pipe
        self.name = f"worker {index} (process {process.pid})"
        self._cause = ""  # of its end, where the head knows better than the exit code

    def send(self, request: Request) -> None:
        """Ask for something; if the process is dead, :meth:`receive` will say so."""
        try:
            self.pipe.send_bytes(_dumps(request, by_value=request.method == "reset"))
        except BlockingIOError:
            self._cause = "read no message in time"
            self.process.kill()
            self.process.join(timeout=10.0)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self) -> Answer:
        """See :class:`~headrace.cluster.messages.Node`."""
        try:
            answer = pickle.loads(self.pipe.recv_bytes())
        except (EOFError, ConnectionResetError):
            self.process.join(timeout=10.0)
            cause = self._cause or f"died (exit code {self.process.exitcode})"
            raise WorkerDied(cause) from None
        if isinstance(answer, Failure):
            raise WorkerDied(answer.traceback.strip().splitlines()[-1], answer)
        return answer

    def kill(self) -> None:
        """End the process."""
        self.pipe.close()
        if self.process.is_alive():
            self.process.kill()
            self.process.join(timeout=10.0)


def _dumps(message: Request | Answer, by_value: bool) -> bytes:
    """``by_value`` what a script defines is in the message; arrays and numbers alone are faster."""
    if not by_value:
        with contextlib.suppress(Exception):  # whatever an object's own pickling raises
            return pickle.dumps(message, pickle.HIGHEST_PROTOCOL)
    return cloudpickle.dumps(message, pickle.HIGHEST_PROTOCOL)


def _limit_writes(pipe: Connection, timeout_s: float) -> None:
    """Let a write raise BlockingIOError after ``timeout_s``, where a pipe is a pair of sockets."""
    if os.name != "posix":
        return
    seconds = min(timeout_s, 1e6)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    with socket.socket(fileno=os.dup(pipe.fileno())) as same:
        same.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)


def _local(nodes: list[Node]) -> Iterator[LocalNode]:
    for node in nodes:
        assert isinstance(node, LocalNode)
        yield node


def run_worker(setup: bytes, pipe: Connection) -> None:
    """What the process runs: answer requests until the head closes the pipe or dies."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the head decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent()
    yield_to_learner()
    keep_freed_memory()
    import torch

    from headrace.cluster.worker import Worker, failure_of

    torch.set_num_threads(1)
    with contextlib.suppress(EOFError, ConnectionError):  # the head has gone
        try:
            worker = Worker(cloudpickle.loads(setup))
            while True:
                try:
                    request = pickle.loads(pipe.recv_bytes())
                except (EOFError, ConnectionError):
                    worker.close()
                    return
                answer = worker.handle(request)
                pipe.send_bytes(_dumps(answer, by_value=request.method in ("reset", "describe")))
                worker.prepare()
        except BaseException as error:
            failure = failure_of(error, traceback.format_exc())
            pipe.send_bytes(pickle.dumps(failure))

"""Worker pool: sends requests, receives answers, replaces dead and unresponsive workers."""

from __future__ import annotations

import dataclasses
import time
import warnings

from headrace.cluster_env.messages import (
    Answer,
    Backend,
    BackendConfig,
    Request,
    WorkerFault,
    WorkerHandle,
    WorkerSetup,
)
from headrace.errors import ConfigError, WorkerFailed
from headrace.processes.restarts import Death, RestartPolicy

_LONGEST_WAIT_S = 3600.0  # limit of the system's wait; longer waits are repeated


class WorkerPool:
    """Pool of workers that answer one request each at a time; ``setups`` are by index."""

    def __init__(self, config: BackendConfig, setups: list[WorkerSetup]) -> None:
        self._config, self._setups = config, setups
        self._backend: Backend = config.open()
        self._nodes: list[WorkerHandle] = []
        self._up: set[int] = set()  # indices that have answered once
        self._cut: set[int] = set()  # interrupted in the middle of a message
        self._failure = ""  # the failure that ended the pool
        self._deadlines: dict[int, tuple[float, float]] = {}  # of pending requests: (time, timeout)
        self._restarts = RestartPolicy(config.max_restarts, WorkerFailed, unstarted=False)
        try:
            for setup in setups:
                self._nodes.append(self._backend.start(setup))
        except BaseException:
            self.close()
            raise

    @property
    def num_restarts(self) -> int:
        """Number of replaced workers."""
        return self._restarts.count

    @property
    def waiting(self) -> set[int]:
        """Workers with pending requests, including those that were cut off."""
        return set(self._deadlines) | self._cut

    def send(self, index: int, request: Request) -> None:
        """Send a request to an idle worker.

        Raises:
            ConfigError: the pool is closed.
            WorkerFailed: it has failed permanently.
        """
        if self._failure:
            raise WorkerFailed(self._failure)
        if not self._nodes:
            raise ConfigError("this ClusterEnv is closed; make another one")
        assert index not in self._deadlines, f"worker {index} is busy"
        limit_s = self._config.timeout_s
        if index not in self._up:
            replaces = (
                self._setups[index].generation > 0
            )  # spaces are requested from worker 0 first
            limit_s = self._config.start_timeout_s + (limit_s if replaces else 0.0)
        try:
            self._deadlines[index] = (time.monotonic() + limit_s, limit_s)
            self._nodes[index].send(request)
        except BaseException:
            self._cut_off(index)
            raise

    def _cut_off(self, index: int) -> None:
        # A partially read or written message corrupts all that follow.
        self._nodes[index].kill()
        self._cut.add(index)

    def receive(self) -> tuple[int, Answer | WorkerFault]:
        """Return the next answer of any worker, or the reason why there is none.

        Raises:
            WorkerFailed: more workers died than ``max_restarts``, or one didn't start.
        """
        while True:
            if self._cut:
                fault = WorkerFault("was interrupted in the middle of a message")
                return self._replace(self._cut.pop(), fault)
            waited = {self._nodes[i]: i for i in self._deadlines}
            earliest = min(self._deadlines.values())[0]
            patience_s = min(max(0.0, earliest - time.monotonic()), _LONGEST_WAIT_S)
            ready, now = self._backend.wait(list(waited), patience_s), time.monotonic()
            for node, index in waited.items():  # even while others answer all the time
                deadline, limit_s = self._deadlines[index]
                if deadline <= now and not self._backend.wait([node], 0.0):
                    return self._replace(index, WorkerFault(f"gave no answer in {limit_s:g} s"))
            if ready:
                return self._answer(waited[ready[0]])

    def _answer(self, index: int) -> tuple[int, Answer | WorkerFault]:
        try:
            answer = self._nodes[index].receive()
        except BaseException:
            self._cut_off(index)
            raise
        if isinstance(answer, WorkerFault):
            return self._replace(index, answer)
        del self._deadlines[index]
        self._up.add(index)
        return index, answer

    def _replace(self, index: int, fault: WorkerFault) -> tuple[int, WorkerFault]:
        """Replace a worker; return the fault with its name."""
        self._deadlines.pop(index, None)
        node, setup = self._nodes[index], self._setups[index]
        node.kill()
        # The agent's errors are not the worker's fault, and are raised each time.
        message = "" if fault.by_agent else self._count_restart(index, fault)
        self._up.discard(index)
        self._setups[index] = dataclasses.replace(setup, generation=setup.generation + 1)
        self._nodes[index] = self._backend.start(self._setups[index])
        if message:
            warnings.warn(message, RuntimeWarning, stacklevel=2)
        return index, fault._replace(reason=f"{node.name}: {fault.reason}")

    def _count_restart(self, index: int, fault: WorkerFault) -> str:
        """Count the replacement of a worker; return a line about it.

        Raises:
            WorkerFailed: no restarts are left, or the worker never came up.
        """
        name, began = self._nodes[index].name, index in self._up
        began = began or self._setups[index].generation > 0  # only those that were up are replaced
        try:
            return self._restarts.restart(
                Death(f"{index}", name, fault.reason, fault.traceback, began=began)
            )
        except WorkerFailed as error:
            self._failure = str(error)
            raise

    def seed(self, seed: int | None) -> None:
        """Set the seed of replacements."""
        self._setups = [dataclasses.replace(setup, seed=seed) for setup in self._setups]

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._backend.close(self._nodes)
        self._nodes = []
        self._deadlines.clear()
        self._cut.clear()

"""The head's workers: requests out, answers in, the dead and the silent replaced."""

from __future__ import annotations

import dataclasses
import time
import warnings

from headrace.cluster.messages import (
    Answer,
    Fault,
    Node,
    Place,
    PlaceConfig,
    Request,
    WorkerDied,
    WorkerSetup,
)
from headrace.errors import AgentFault, WorkerFailed


class Crew:
    """Workers that answer, one request each at a time.

    Args:
        config: of their place, with its limits.
        setups: of each worker, by index.
    """

    def __init__(self, config: PlaceConfig, setups: list[WorkerSetup]) -> None:
        self._config, self._setups = config, setups
        self._place: Place = config.open()
        self._nodes: list[Node] = []
        self._up: set[int] = set()  # have answered something
        self._deadlines: dict[int, tuple[float, float]] = {}  # of what was asked: (when, after)
        self.num_restarts = 0
        try:
            for setup in setups:
                self._nodes.append(self._place.start(setup))
        except BaseException:
            self.close()
            raise

    def __len__(self) -> int:
        return len(self._setups)

    @property
    def waiting(self) -> set[int]:
        """Workers that have been asked and haven't answered."""
        return set(self._deadlines)

    def send(self, index: int, request: Request) -> None:
        """Ask a worker that isn't busy."""
        assert index not in self._deadlines, f"worker {index} is busy"
        limit_s = self._config.timeout_s
        if index not in self._up:
            limit_s += self._config.start_timeout_s
        self._deadlines[index] = (time.monotonic() + limit_s, limit_s)
        self._nodes[index].send(request)

    def receive(self) -> tuple[int, Answer | Fault]:
        """The next answer of any worker that was asked, or why there is none.

        Raises:
            WorkerFailed: more workers died than ``max_restarts``, or one never came up.
            AgentFault: the agent raised in a worker.
        """
        while True:
            waited = {self._nodes[i].name: i for i in self._deadlines}
            earliest = min(self._deadlines.values())[0]
            patience_s = max(0.0, earliest - time.monotonic())
            ready = self._place.wait([self._nodes[i] for i in waited.values()], patience_s)
            if ready:
                index = waited[ready[0].name]
                del self._deadlines[index]
                return index, self._answer(index)
            now = time.monotonic()
            late = [i for i, (deadline, _) in self._deadlines.items() if deadline <= now]
            if late:
                _, limit_s = self._deadlines.pop(late[0])
                self._nodes[late[0]].kill()
                return late[0], self._replace(late[0], f"gave no answer in {limit_s:g} s", "")

    def _answer(self, index: int) -> Answer | Fault:
        try:
            answer = self._nodes[index].receive()
        except WorkerDied as death:
            failure = death.failure
            if failure is not None and failure.by_agent:
                self._replace(index, "was given an agent that failed", "", quiet=True)
                raise AgentFault(
                    f"the agent failed in {self._nodes[index].name}: {death.cause}\n\n"
                    f"Its traceback:\n{failure.traceback.rstrip()}"
                ) from None
            return self._replace(index, death.cause, failure.traceback if failure else "")
        self._up.add(index)
        return answer

    def _replace(self, index: int, cause: str, traceback: str, quiet: bool = False) -> Fault:
        node, was_up = self._nodes[index], index in self._up
        node.kill()
        limit = self._config.max_restarts
        if self.num_restarts >= limit or not was_up:
            why = f"max_restarts={limit} restarts are used up" if was_up else "it never came up"
            raise WorkerFailed(
                f"{node.name}: {cause}; {why}"
                + (f"\n\nIts traceback:\n{traceback.rstrip()}" if traceback else "")
            )
        self.num_restarts += 1
        self._up.discard(index)
        setup = self._setups[index]
        setup = dataclasses.replace(setup, generation=setup.generation + 1)
        self._setups[index] = setup
        self._nodes[index] = self._place.start(setup)
        reason = f"{node.name}: {cause}"
        if not quiet:
            warnings.warn(
                f"{reason} (restart {self.num_restarts}/{limit})\n{traceback.rstrip()}",
                RuntimeWarning,
                stacklevel=2,
            )
        return Fault(reason, traceback)

    def seed(self, seed: int | None) -> None:
        """What replacements are seeded from."""
        self._setups = [dataclasses.replace(setup, seed=seed) for setup in self._setups]

    def names(self) -> list[str]:
        """Of the workers, for messages."""
        return [node.name for node in self._nodes]

    def close(self) -> None:
        """End all workers; safe to call twice."""
        self._place.close(self._nodes)
        self._nodes = []

"""Messages between the head and its workers, and the interfaces of backends."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.actors.weight_sync import SyncRule


@dataclass(frozen=True)
class WorkerSetup:
    """Arguments of a worker; pickled by value."""

    env: Any  # resolved (``headrace.envs.names.resolve``)
    num_envs: int
    engine: str
    env_kwargs: dict[str, Any]
    seed: int | None  # seed of all environments; None: random
    index: int  # first environment of the worker
    runs_ahead: bool = False  # begins the agent's next step before it is requested
    generation: int = 0  # number of replacements


class Agent(NamedTuple):
    """Serialised agent, sent once to each worker."""

    pickled: bytes
    rule: SyncRule


class Request(NamedTuple):
    """Call of a worker's method; ``version`` is the head's if the agent acts."""

    method: str
    args: tuple[Any, ...] = ()
    version: int | None = None
    agent: Agent | None = None  # the agent of this version, if the worker has none
    weights: bytes | None = None  # weights of this version, if the worker requested them
    measured: tuple[int, float] | None = None  # (version that acted, its KL to the head's)


class Answer(NamedTuple):
    """Return value of a request, or a request for weights that must come first."""

    value: Any
    version: int  # version of the weights that it acted with last; -1: none
    divergence: float | None  # running mean
    wants_weights: bool = False
    discarded: int = 0  # steps run ahead and discarded


class WorkerFault(NamedTuple):
    """Reason why a worker ended instead of answering, reported by itself or from outside."""

    reason: str
    traceback: str = ""
    by_agent: bool = False  # caused by the agent, not by the environments


class WorkerHandle(Protocol):
    """Handle of one worker on any backend."""

    @property
    def name(self) -> str:
        """Name of the worker and of its location."""

    def send(self, request: Request) -> None:
        """Send a request; answers arrive in order."""

    def receive(self) -> Answer | WorkerFault:
        """Return the answer that :meth:`Backend.wait` announced, or a fault."""

    def kill(self) -> None:
        """Kill the worker at once; safe to call twice."""


class Backend(Protocol):
    """Backend that runs workers."""

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        """Begin to start a worker; returns at once."""

    def wait(self, nodes: list[WorkerHandle], timeout_s: float) -> list[WorkerHandle]:
        """Return workers that have answered or died; none after ``timeout_s`` seconds."""

    def close(self, nodes: list[WorkerHandle]) -> None:
        """End these workers, and everything that was started to run them."""


class BackendConfig(Protocol):
    """Settings of a backend, the argument ``config`` of ClusterEnv.

    A scheduler's backend allocates machines and then opens the backend that runs on them.
    """

    @property
    def nodes(self) -> int:
        """Number of workers."""

    @property
    def timeout_s(self) -> float:
        """Timeout of an answer, in seconds."""

    @property
    def start_timeout_s(self) -> float:
        """Timeout of a worker's start, in seconds."""

    @property
    def max_restarts(self) -> int:
        """Maximum number of worker replacements, over all workers."""

    def open(self) -> Backend:
        """Open the backend, ready to start workers."""

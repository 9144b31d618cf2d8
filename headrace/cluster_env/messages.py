"""What the head and its workers say to each other, and what a place where workers run offers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from headrace.actors.weight_sync import SyncRule


@dataclass(frozen=True)
class WorkerSetup:
    """All that a worker is built from; sent by value."""

    env: Any  # resolved (``headrace.envs.names.resolve``)
    num_envs: int
    engine: str
    env_kwargs: dict[str, Any]
    seed: int | None  # of all environments; None: random
    index: int  # of the worker
    runs_ahead: bool = False  # begins the agent's next step before it is asked for
    generation: int = 0  # how often it was replaced


class Agent(NamedTuple):
    """An agent as it travels: once to each worker."""

    pickled: bytes
    rule: SyncRule


class Request(NamedTuple):
    """One call of a worker's method; ``version`` is the head's if the agent is to act."""

    method: str
    args: tuple[Any, ...] = ()
    version: int | None = None
    agent: Agent | None = None  # the worker has none yet; of this version
    weights: bytes | None = None  # it asked for them; of this version
    measured: tuple[int, float] | None = None  # (version that acted, its KL to the head's)


class Answer(NamedTuple):
    """What a worker returned, or that it wants weights before it does what it was asked."""

    value: Any
    version: int  # of the weights that it acted with last; -1: it hasn't
    divergence: float | None  # its running mean
    wants_weights: bool = False
    discarded: int = 0  # steps that it had run ahead and threw away


class WorkerFault(NamedTuple):
    """Why a worker ended instead of answering: what it said last, or what others know of it."""

    reason: str
    traceback: str = ""
    by_agent: bool = False  # not its environments but the agent failed


class WorkerHandle(Protocol):
    """One worker, wherever it runs."""

    @property
    def name(self) -> str:
        """The worker's, and where it runs."""

    def send(self, request: Request) -> None:
        """Ask for something; answers come in order."""

    def receive(self) -> Answer | WorkerFault:
        """The answer that :meth:`Backend.wait` announced, or why there will be none."""

    def kill(self) -> None:
        """End it at once; safe to call twice."""


class Backend(Protocol):
    """Where workers run."""

    def start(self, setup: WorkerSetup) -> WorkerHandle:
        """Begin to start a worker; returns at once."""

    def wait(self, nodes: list[WorkerHandle], timeout_s: float) -> list[WorkerHandle]:
        """Those that have answered or died; none after ``timeout_s`` seconds."""

    def close(self, nodes: list[WorkerHandle]) -> None:
        """End these workers, and whatever was started to run them."""


class BackendConfig(Protocol):
    """Settings of a place: what ``ClusterEnv`` takes as ``config``.

    A scheduler is one more of these: it provisions machines and opens the place where they are.
    """

    @property
    def nodes(self) -> int:
        """Workers."""

    @property
    def timeout_s(self) -> float:
        """Seconds in which a worker must answer."""

    @property
    def start_timeout_s(self) -> float:
        """Seconds in which it must be up."""

    @property
    def max_restarts(self) -> int:
        """Deaths that are made good, all workers together."""

    def open(self) -> Backend:
        """The place, ready to start workers."""

"""Communication of ClusterEnv's head with its workers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from gymnasium.vector.utils import create_empty_array

from headrace.cluster_env.agent import as_array, initial_state
from headrace.cluster_env.batching import join_rollouts, padding
from headrace.cluster_env.messages import Answer, BackendConfig, Request, WorkerFault, WorkerSetup
from headrace.cluster_env.settings import EnvConfig
from headrace.cluster_env.weight_sync import AgentSync
from headrace.cluster_env.worker_pool import WorkerPool
from headrace.errors import AgentFault
from headrace.ops import tree
from headrace.types import Rollout


class ClusterHead:
    """Running workers, their latest observations, and the agent that they have copies of.

    Raises:
        WorkerFailed: a worker didn't start.
    """

    def __init__(self, settings: EnvConfig, config: BackendConfig) -> None:
        self.num_workers, self.size = config.nodes, settings.envs_per_node
        each = settings.target, self.size, settings.engine, settings.env_kwargs, settings.seed
        ahead = settings.runs_ahead
        setups = [WorkerSetup(*each, i, ahead) for i in range(self.num_workers)]
        self.obs: list[Any] = []  # latest of each worker; empty before the first reset
        self.faults: dict[int, str] = {}  # of the latest call, by worker
        self._unreported: dict[
            int, WorkerFault
        ] = {}  # by worker; faults that no call has reported yet
        self._new: set[int] = set()  # replacements without an answer so far
        self._requests: dict[int, Request] = {}
        self._versions = np.full(
            self.num_workers, -1
        )  # versions of the weights that each acts with
        self._divergence = np.zeros(self.num_workers)  # each worker's latest running mean
        self._diverges = np.zeros(self.num_workers, bool)  # whether it is known
        self._discarded = np.zeros(self.num_workers, int)  # steps run ahead and discarded
        self._extras: dict[str, Any] = {}  # of one step of the latest rollout, ``[B, ...]``
        self._sync = AgentSync(self.num_workers, settings.rule)
        self.pool = WorkerPool(config, setups)
        try:
            requests = {i: Request("describe") for i in range(self.num_workers)}
            self.description: Any = self.request_all(requests)[0].value  # see Worker.describe
        except BaseException:
            self.pool.close()
            raise

    def rows(self, worker: int) -> slice:
        """Return the environments of a worker."""
        return slice(worker * self.size, (worker + 1) * self.size)

    # -- requests and answers -------------------------------------------------------------------

    def request_all(self, requests: dict[int, Request], again: bool = False) -> dict[int, Answer]:
        """Send requests to workers and await all answers; failed workers are missing, see
        ``faults``.

        Args:
            again: repeat the request to replacements until all have answered.
        """
        self.drain()
        answers: dict[int, Answer] = {}
        self._report_pending(requests)
        waiting = set(requests) if again else set(requests) - set(self.faults)
        for i in sorted(waiting):
            self._send(i, requests[i])
        while waiting:
            i, answer = self._receive(raises=not again)
            if isinstance(answer, Answer):
                answers[i] = answer
            elif again:
                self._send(i, requests[i])
                continue
            waiting.discard(i)
        return answers

    def _report_pending(self, workers: Iterable[int]) -> None:
        """Initialise ``faults`` with unreported faults of these workers."""
        untold = {i: self._unreported.pop(i) for i in workers if i in self._unreported}
        self.faults = {i: fault.reason for i, fault in untold.items()}
        for i, fault in untold.items():
            self._raise_if_by_agent(i, fault)

    def _send(self, worker: int, request: Request) -> None:
        self._requests[worker] = request
        self.pool.send(worker, request)
        self._sync.sent(worker, request)

    def _receive(self, raises: bool = True) -> tuple[int, Answer | WorkerFault]:
        """Return the next answer, granting requests for weights on the way.

        Args:
            raises: raise the agent's errors. A reset doesn't, because they come from a step run
                ahead, which it discards.
        """
        while True:
            i, answer = self._next_answer()
            if isinstance(answer, WorkerFault):
                self.faults[i] = answer.reason
                del self._unreported[i]
                if raises:
                    self._raise_if_by_agent(i, answer)
                return i, answer
            if not answer.wants_weights:
                return i, answer
            self._send(i, self._sync.granted(i, self._requests[i]))

    def _next_answer(self) -> tuple[int, Answer | WorkerFault]:
        """Receive and record the next answer."""
        i, answer = self.pool.receive()
        if isinstance(answer, WorkerFault):
            self._sync.replaced(i)
            self._unreported[i] = answer
            self._new.add(i)
            self._versions[i], self._divergence[i], self._diverges[i] = -1, 0.0, False
            return i, answer
        self._discarded[i] += answer.discarded
        if answer.divergence is not None:
            self._divergence[i], self._diverges[i] = answer.divergence, True
        if not answer.wants_weights:
            self._versions[i] = answer.version
            self._new.discard(i)
            if self.obs:
                self.obs[i] = _last_obs(self._requests[i].method, answer.value)
        return i, answer

    def _raise_if_by_agent(self, worker: int, fault: WorkerFault) -> None:
        if not fault.by_agent:
            return
        self.drain()  # the others have the same agent
        lost = {**self._unreported, worker: fault}
        self._unreported = {
            i: f._replace(by_agent=False) for i, f in lost.items()
        }  # rows end later
        raise AgentFault(
            f"the agent failed in {fault.reason}\n\nIts traceback:\n{fault.traceback.rstrip()}"
        )

    def drain(self) -> None:
        """Await and discard outstanding answers of an abandoned call or iteration."""
        while self.pool.waiting:
            self._next_answer()

    # -- acting ---------------------------------------------------------------------------------

    def step(self, agent: Any) -> dict[int, Answer]:
        """Step with the agent; each answer holds the step and the agent's outputs."""
        self.drain()
        self._sync.update(agent)
        before, new = list(self.obs), set(self._new)
        answers = self.request_all(
            {i: self._sync.request(i, "act") for i in range(self.num_workers)}
        )
        for i, answer in answers.items():
            (obs, *_), acted = answer.value
            obs = obs if i in new else before[i]  # a replacement acts after its reset
            log_prob = acted.get("log_prob")
            self._sync.acted(i, answer.version, obs, acted["action"], log_prob)
        return answers

    def collect(self, agent: Any, num_steps: int, action_space: Any) -> Rollout:
        """Collect a rollout of all environments; see :meth:`ClusterEnv.collect`."""
        self.drain()
        self._sync.update(agent)
        everyone = range(self.num_workers)
        answers = self.request_all(
            {i: self._sync.request(i, "collect", num_steps) for i in everyone}
        )
        parts = {i: self._record(i, answer) for i, answer in answers.items()}
        none = create_empty_array(action_space, self.size)
        for i in set(everyone) - set(parts):
            core = tree.map_leaves(as_array, initial_state(agent, self.size))
            rows, extras = np.r_[self.rows(i)], self._extras
            parts[i] = padding(num_steps, rows, self.obs[i], none, core, extras)
        return join_rollouts([parts[i] for i in everyone])

    def stream(self, agent: Any, num_steps: int) -> Iterator[Rollout]:
        """Yield rollouts of single workers; see :meth:`ClusterEnv.collect_async`.

        A closed generator leaves its pending answers for the next call to drain, because the pipes
        may already be closed.
        """
        self.drain()
        self._report_pending(range(self.num_workers))
        while True:
            self._sync.update(agent)  # before any weights are granted
            for idle in set(range(self.num_workers)) - self.pool.waiting:
                self._send(idle, self._sync.request(idle, "collect", num_steps))
            i, answer = self._receive()
            if isinstance(answer, WorkerFault):
                continue
            part = self._record(i, answer)
            self._send(i, self._sync.request(i, "collect", num_steps))
            yield join_rollouts([part])

    def _record(self, worker: int, answer: Answer) -> dict[str, Any]:
        """Record a worker's part of a rollout and return it."""
        part = answer.value
        rows = tree.map_leaves(lambda x: x[:-1], part["obs"]), part["action"], part["log_prob"]
        obs, action, log_prob = tree.map_leaves(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        self._sync.acted(worker, answer.version, obs, action, log_prob)
        self._extras = tree.map_leaves(lambda x: x[0].copy(), part["extras"])
        return part

    # -- what is counted ------------------------------------------------------------------------

    def sync_info(self) -> dict[str, np.ndarray]:
        """Return synchronisation metrics per worker ``[W]``."""
        return {
            "policy_version": self._versions.copy(),
            "divergence": self._divergence.copy(),
            "_divergence": self._diverges.copy(),
            "measure": np.array([self._sync.measure] * self.num_workers),
            "weight_requests": self._sync.requests.copy(),
            "weight_syncs": self._sync.syncs.copy(),
            "weight_bytes": self._sync.bytes.copy(),
            "steps_discarded": self._discarded.copy(),
        }


def _last_obs(method: str, value: Any) -> Any:
    """Return a worker's latest observations from its answer to a request for ``method``."""
    if method == "collect":
        return tree.map_leaves(lambda x: x[-1], value["obs"])
    return value[0][0] if method == "act" else value[0]

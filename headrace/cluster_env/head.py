"""The head's end of all that is said between it and its workers."""

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
    """Workers that are up, what they observed last, and an agent that they have copies of.

    Raises:
        WorkerFailed: a worker didn't come up.
    """

    def __init__(self, settings: EnvConfig, config: BackendConfig) -> None:
        self.num_workers, self.size = config.nodes, settings.envs_per_node
        each = settings.target, self.size, settings.engine, settings.env_kwargs, settings.seed
        ahead = settings.runs_ahead
        setups = [WorkerSetup(*each, i, ahead) for i in range(self.num_workers)]
        self.obs: list[Any] = []  # latest of each worker; empty before the first reset
        self.faults: dict[int, str] = {}  # of the latest call, by worker
        self._untold: dict[int, WorkerFault] = {}  # by worker; no call has told yet
        self._new: set[int] = set()  # replacements that haven't answered
        self._asked: dict[int, Request] = {}
        self._versions = np.full(self.num_workers, -1)  # of the weights that each acts with
        self._divergence = np.zeros(self.num_workers)  # each worker's latest running mean
        self._diverges = np.zeros(self.num_workers, bool)  # where that is known
        self._discarded = np.zeros(self.num_workers, int)  # steps run ahead and thrown away
        self._drift = AgentSync(self.num_workers, settings.rule)
        self.crew = WorkerPool(config, setups)
        try:
            asked = {i: Request("describe") for i in range(self.num_workers)}
            self.description: Any = self.ask(asked)[0].value  # see Worker.describe
        except BaseException:
            self.crew.close()
            raise

    def rows(self, worker: int) -> slice:
        """Which environments are this worker's."""
        return slice(worker * self.size, (worker + 1) * self.size)

    # -- requests and answers -------------------------------------------------------------------

    def ask(self, requests: dict[int, Request], again: bool = False) -> dict[int, Answer]:
        """Send to each worker and await all; those that died are missing, and in ``faults``.

        Args:
            again: ask what replaces the dead until all have answered.
        """
        self.drain()
        answers: dict[int, Answer] = {}
        self._tell_untold(requests)
        waiting = set(requests) if again else set(requests) - set(self.faults)
        for i in sorted(waiting):
            self._send(i, requests[i])
        while waiting:
            i, answer = self._receive(tell=not again)
            if isinstance(answer, Answer):
                answers[i] = answer
            elif again:
                self._send(i, requests[i])
                continue
            waiting.discard(i)
        return answers

    def _tell_untold(self, workers: Iterable[int]) -> None:
        """Begin ``faults`` with those of these workers that no call has told yet."""
        untold = {i: self._untold.pop(i) for i in workers if i in self._untold}
        self.faults = {i: fault.reason for i, fault in untold.items()}
        for i, fault in untold.items():
            self._raise_if_by_agent(i, fault)

    def _send(self, worker: int, request: Request) -> None:
        self._asked[worker] = request
        self.crew.send(worker, request)
        self._drift.sent(worker, request)

    def _receive(self, tell: bool = True) -> tuple[int, Answer | WorkerFault]:
        """The next answer that isn't a wish for weights, which is granted here.

        Args:
            tell: raise what the agent raised. A reset doesn't: that was in a step run ahead, which
                it throws away.
        """
        while True:
            i, answer = self._heard()
            if isinstance(answer, WorkerFault):
                self.faults[i] = answer.reason
                del self._untold[i]
                if tell:
                    self._raise_if_by_agent(i, answer)
                return i, answer
            if not answer.wants_weights:
                return i, answer
            self._send(i, self._drift.granted(i, self._asked[i]))

    def _heard(self) -> tuple[int, Answer | WorkerFault]:
        """The next answer, noted."""
        i, answer = self.crew.receive()
        if isinstance(answer, WorkerFault):
            self._drift.replaced(i)
            self._untold[i] = answer
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
                self.obs[i] = _last_obs(self._asked[i].method, answer.value)
        return i, answer

    def _raise_if_by_agent(self, worker: int, fault: WorkerFault) -> None:
        if not fault.by_agent:
            return
        self.drain()  # the others have the same agent
        lost = {**self._untold, worker: fault}
        self._untold = {i: f._replace(by_agent=False) for i, f in lost.items()}  # rows end later
        raise AgentFault(
            f"the agent failed in {fault.reason}\n\nIts traceback:\n{fault.traceback.rstrip()}"
        )

    def drain(self) -> None:
        """Await what was asked and isn't wanted any more (a call or iteration that was left)."""
        while self.crew.waiting:
            self._heard()

    # -- acting ---------------------------------------------------------------------------------

    def step(self, agent: Any) -> dict[int, Answer]:
        """One step with the agent; each answer is the step and what the agent returned."""
        self.drain()
        self._drift.look(agent)
        before, new = list(self.obs), set(self._new)
        answers = self.ask({i: self._drift.request(i, "act") for i in range(self.num_workers)})
        for i, answer in answers.items():
            (obs, *_), acted = answer.value
            seen = obs if i in new else before[i]  # a replacement acts after its reset
            log_prob = acted.get("log_prob")
            self._drift.acted(i, answer.version, seen, acted["action"], log_prob)
        return answers

    def collect(self, agent: Any, num_steps: int, action_space: Any) -> Rollout:
        """A rollout of all environments; see :meth:`ClusterEnv.collect`."""
        self.drain()
        self._drift.look(agent)
        everyone = range(self.num_workers)
        answers = self.ask({i: self._drift.request(i, "collect", num_steps) for i in everyone})
        parts = {i: self._kept(i, answer) for i, answer in answers.items()}
        extras: dict[str, Any] = next((part["extras"] for part in parts.values()), {})
        none = create_empty_array(action_space, self.size)
        for i in set(everyone) - set(parts):
            core = tree.map_leaves(as_array, initial_state(agent, self.size))
            parts[i] = padding(num_steps, np.r_[self.rows(i)], self.obs[i], none, core, extras)
        return join_rollouts([parts[i] for i in everyone])

    def stream(self, agent: Any, num_steps: int) -> Iterator[Rollout]:
        """Rollouts of single workers; see :meth:`ClusterEnv.collect_async`."""
        self.drain()
        self._tell_untold(range(self.num_workers))
        try:
            while True:
                self._drift.look(agent)  # before any weights are granted
                for idle in set(range(self.num_workers)) - self.crew.waiting:
                    self._send(idle, self._drift.request(idle, "collect", num_steps))
                i, answer = self._receive()
                if isinstance(answer, WorkerFault):
                    continue
                part = self._kept(i, answer)
                self._send(i, self._drift.request(i, "collect", num_steps))
                yield join_rollouts([part])
        finally:
            self.drain()

    def _kept(self, worker: int, answer: Answer) -> dict[str, Any]:
        """A worker's part of a rollout, noted for what comes after it."""
        part = answer.value
        rows = tree.map_leaves(lambda x: x[:-1], part["obs"]), part["action"], part["log_prob"]
        obs, action, log_prob = tree.map_leaves(lambda x: x.reshape(-1, *x.shape[2:]), rows)
        self._drift.acted(worker, answer.version, obs, action, log_prob)
        return part

    # -- what is counted ------------------------------------------------------------------------

    def sync_info(self) -> dict[str, np.ndarray]:
        """Of each worker ``[W]``: what its copy of the agent is, and what was sent for it."""
        return {
            "policy_version": self._versions.copy(),
            "divergence": self._divergence.copy(),
            "_divergence": self._diverges.copy(),
            "measure": np.array([self._drift.measure] * self.num_workers),
            "weight_requests": self._drift.requests.copy(),
            "weight_syncs": self._drift.syncs.copy(),
            "weight_bytes": self._drift.bytes.copy(),
            "steps_discarded": self._discarded.copy(),
        }


def _last_obs(method: str, value: Any) -> Any:
    """What a worker's environments observed last, in its answer to a request for ``method``."""
    if method == "collect":
        return tree.map_leaves(lambda x: x[-1], value["obs"])
    return value[0][0] if method == "act" else value[0]

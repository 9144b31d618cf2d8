"""The head's end of all that is said between it and its workers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from headrace.cluster.crew import Crew
from headrace.cluster.drift import Drift
from headrace.cluster.messages import Answer, Fault, PlaceConfig, Request, WorkerSetup
from headrace.cluster.rows import empty, join_rollouts, padding
from headrace.cluster.settings import EnvConfig
from headrace.ops import tree
from headrace.types import Rollout


class Head:
    """Workers that are up, what they observed last, and an agent that they have copies of.

    Args:
        settings: of the environments. config: of the place where the workers are to run.

    Raises:
        WorkerFailed: a worker didn't come up.
    """

    def __init__(self, settings: EnvConfig, config: PlaceConfig) -> None:
        self.num_workers, self.size = config.nodes, settings.envs_per_node
        setups = [
            WorkerSetup(
                env=settings.target,
                num_envs=self.size,
                engine=settings.engine,
                env_kwargs=settings.env_kwargs,
                seed=settings.seed,
                first_env=i * self.size,
                index=i,
                generation=0,
            )
            for i in range(self.num_workers)
        ]
        self.obs: list[Any] = []  # latest of each worker; empty before the first reset
        self.faults: dict[int, str] = {}  # of the latest call, by worker
        self._asked: dict[int, Request] = {}
        self._latest: dict[int, Answer] = {}
        self._drift = Drift(self.num_workers, settings.rule)
        self.crew = Crew(config, setups)
        try:
            asked = {i: Request("describe") for i in range(self.num_workers)}
            self.description: dict[str, Any] = self.ask(asked)[0].value
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
        self.faults = {}
        for i, request in requests.items():
            self._send(i, request)
        answers: dict[int, Answer] = {}
        waiting = set(requests)
        while waiting:
            i, answer = self._receive()
            if isinstance(answer, Answer):
                answers[i] = answer
            elif again:
                self._send(i, requests[i])
                continue
            waiting.discard(i)
        return answers

    def _send(self, worker: int, request: Request) -> None:
        self._asked[worker] = request
        self.crew.send(worker, request)

    def _receive(self) -> tuple[int, Answer | Fault]:
        """The next answer that isn't a wish for weights, which is granted here."""
        while True:
            i, answer = self.crew.receive()
            if isinstance(answer, Fault):
                self.faults[i] = answer.reason
                self._drift.replaced(i)
                return i, answer
            if not answer.wants_weights:
                self._latest[i] = answer
                return i, answer
            self._send(i, self._drift.granted(i, self._asked[i]))

    def drain(self) -> None:
        """Await what was asked and isn't wanted any more (an iteration that was left)."""
        while self.crew.waiting:
            i, answer = self.crew.receive()
            if isinstance(answer, Fault):
                self._drift.replaced(i)

    def close(self) -> None:
        """End all workers."""
        self.crew.close()

    # -- acting ---------------------------------------------------------------------------------

    def step(self, agent: Any) -> dict[int, Answer]:
        """One step with the agent; each answer is the step and what the agent returned."""
        self._drift.look(agent)
        everyone = range(self.num_workers)
        answers = self.ask({i: self._drift.request(i, "act") for i in everyone})
        for i, answer in answers.items():
            acted = answer.value[1]
            log_prob = acted.get("log_prob")
            self._drift.acted(i, answer.version, self.obs[i], acted["action"], log_prob)
        return answers

    def collect(self, agent: Any, num_steps: int, action_space: Any) -> Rollout:
        """A rollout of all environments; see :meth:`ClusterEnv.collect`."""
        self._drift.look(agent)
        everyone = range(self.num_workers)
        answers = self.ask({i: self._drift.request(i, "collect", num_steps) for i in everyone})
        parts = {i: self._kept(i, answer) for i, answer in answers.items()}
        like = next(iter(parts.values()), None)
        for i in set(everyone) - set(parts):
            fields = {
                "num_steps": num_steps,
                "action": empty(action_space, self.size),
                "env_id": np.arange(self.rows(i).start, self.rows(i).stop),
            }
            parts[i] = padding(like, self.obs[i], fields)
        return join_rollouts([parts[i] for i in everyone])

    def stream(self, agent: Any, num_steps: int) -> Iterator[Rollout]:
        """Rollouts of single workers; see :meth:`ClusterEnv.collect_async`."""
        self.drain()
        self.faults = {}
        self._drift.look(agent)
        for i in range(self.num_workers):
            self._send(i, self._drift.request(i, "collect", num_steps))
        try:
            while True:
                self._drift.look(agent)  # before any weights are granted
                i, answer = self._receive()
                part = None if isinstance(answer, Fault) else self._kept(i, answer)
                self._send(i, self._drift.request(i, "collect", num_steps))
                if part is not None:
                    yield join_rollouts([part])
        finally:
            self.drain()

    def _kept(self, worker: int, answer: Answer) -> dict[str, Any]:
        """A worker's part of a rollout, noted for what comes after it."""
        part = answer.value
        self.obs[worker] = tree.map_leaves(lambda x: x[-1], part["obs"])

        def flat(x: np.ndarray) -> np.ndarray:
            return x.reshape(-1, *x.shape[2:])

        obs = tree.map_leaves(lambda x: flat(x[:-1]), part["obs"])
        log_prob = flat(part["log_prob"])
        known = None if np.isnan(log_prob).any() else log_prob
        self._drift.acted(worker, answer.version, obs, tree.map_leaves(flat, part["action"]), known)
        return part

    # -- what is counted ------------------------------------------------------------------------

    def sync_info(self) -> dict[str, np.ndarray]:
        """Of each worker ``[W]``: what its copy of the agent is, and what was sent for it."""
        latest = [self._latest.get(i) for i in range(self.num_workers)]
        drifts = [None if a is None else a.divergence for a in latest]
        return {
            "policy_version": np.array([-1 if a is None else a.version for a in latest]),
            "divergence": np.array([0.0 if d is None else d for d in drifts]),
            "_divergence": np.array([d is not None for d in drifts]),  # where it is known
            "weight_syncs": np.array(self._drift.syncs),
            "weight_bytes": np.array(self._drift.bytes),
        }

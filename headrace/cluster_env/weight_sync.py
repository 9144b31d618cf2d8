"""The head's weight synchronisation: the agent's version, and the divergence of its copies."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from headrace.actors.weight_sync import SyncRule
from headrace.cluster_env.agent import (
    check_agent,
    device_of,
    has_distribution,
    has_log_prob,
    is_recurrent,
    pack_agent,
    pack_weights,
)
from headrace.cluster_env.messages import Agent, Request
from headrace.cluster_env.output_divergence import divergences as by_outputs
from headrace.cluster_env.output_divergence import draws, is_repeatable, num_draws
from headrace.cluster_env.parameter_fingerprint import ParameterFingerprint
from headrace.cluster_env.policy_divergence import AgentCopies, Rows, estimates, exact, joined
from headrace.ops import tree

MIN_OBSERVATIONS = 64  # rows per worker that the divergence is measured on, if available
MAX_OBSERVATIONS = 1024  # minimum of these rows
_FEWEST_OF_A_PART = 16  # rows kept of one step or rollout before others are dropped


class RecentSteps:
    """A worker's observations, actions and log-probabilities since the last measurement.

    This is a rollout if the agent is updated once per rollout. At most 1,024 evenly spaced rows are
    kept, and at least the latest 64. All have the same version.
    """

    def __init__(self) -> None:
        self._begin(-1)

    def _begin(self, version: int) -> None:
        self.version, self._before = version, list[Rows]()  # the latest measured rows
        self._parts: list[Rows] = []  # every n-th row since then: at most twice the measured number
        self._count = 0  # number of rows in them
        self._index, self._every, self._most = 0, 1, MAX_OBSERVATIONS  # number of rows of a part

    def add(self, version: int, obs: Any, action: Any, log_prob: np.ndarray) -> None:
        """Add ``n`` rows (trees ``[n, ...]``, ``[n]``); rows of older versions are dropped."""
        if version != self.version:
            self._begin(version)
        if self._index % self._every == 0:
            self._parts.append(_spread((obs, action, log_prob), self._most))
            self._count += len(self._parts[-1][2])
        while self._count > 2 * MAX_OBSERVATIONS:
            if self._most > _FEWEST_OF_A_PART:
                self._most //= 2
            else:
                self._parts, self._every = self._parts[::2], 2 * self._every
            self._parts = [_spread(part, self._most) for part in self._parts]
            self._count = sum(len(part[2]) for part in self._parts)
        self._index += 1

    def measured(self) -> Rows:
        """Return the rows, of which there must be some, and start a new collection."""
        few = self._count < MIN_OBSERVATIONS
        rows = tree.map_leaves(lambda *x: np.concatenate(x), *self._before, *self._parts)
        latest = tree.map_leaves(lambda x: x[-MIN_OBSERVATIONS:], rows)
        if not few:
            rows = tree.map_leaves(lambda *x: np.concatenate(x), *self._parts)
        self._begin(self.version)
        self._before = [latest]
        return latest if few else _spread(rows, MAX_OBSERVATIONS)


def _spread(rows: Rows, most: int) -> Rows:
    """Return evenly spaced rows, at most ``most``."""
    if (count := len(rows[2])) <= most:
        return rows
    even = _evenly(count, most)
    selected: Rows = tree.map_leaves(lambda x: x[even], rows)
    return selected


@functools.lru_cache(maxsize=64)
def _evenly(count: int, most: int) -> np.ndarray:
    return np.linspace(0, count - 1, most).astype(int)


class AgentSync:
    """Tracks one agent's updates, for workers that act with copies and fetch weights by a rule.

    Attributes:
        version: version of the head's agent, the number of observed changes.
        measure: divergence measure of copies: "kl", "estimate" (from log-probabilities), "outputs"
            (from outputs of ``act``) or "age" (not measured).
    """

    def __init__(self, num_workers: int, rule: SyncRule) -> None:
        self._setting, self._rule = rule, rule
        self._agent: Any = None
        self._seen: ParameterFingerprint | None = None  # the parameters at ``version``
        self._has: set[int] = set()  # workers that have the agent
        self._packed: dict[
            Callable[[Any], bytes], bytes
        ] = {}  # serialised ``version``, by the packing function
        self._recent = [RecentSteps() for _ in range(num_workers)]
        self._notes: dict[int, tuple[int, float]] = {}  # measurements not sent yet
        self._copies: AgentCopies | None = None  # if the measure is "kl" or "outputs"
        self._is_repeatable = False  # whether copies are known to act in the same way
        self._sent_versions: dict[int, int] = {}  # the version last sent to each worker
        self.version, self.measure = -1, "age"
        self.syncs, self.requests, self.bytes = np.zeros((3, num_workers), int)

    def update(self, agent: Any) -> None:
        """Detect whether the agent was updated or replaced, and measure the copies if it was.

        Raises:
            ConfigError: it lacks a required method (``headrace.cluster_env.agent``).
        """
        if agent is not self._agent:
            check_agent(agent)
            packed = pack_agent(agent)
            self._agent, self.measure = agent, self._measure_of(agent)
            by_age = replace(self._setting, every=self._setting.every or 1)
            self._rule = by_age if self.measure == "age" else self._setting
            self._copies = AgentCopies(packed) if self.measure in ("kl", "outputs") else None
            self._is_repeatable = False
            self._packed = {pack_agent: packed}
            self._has.clear()
            self._recent = [RecentSteps() for _ in self._recent]
        elif self._seen is not None and self._seen.is_of(agent):
            return
        else:
            self._packed = {}
        self._seen = ParameterFingerprint(agent)
        self.version += 1
        if self._rule.on_drift:
            self._measure()

    def _measure_of(self, agent: Any) -> str:
        if not self._setting.on_drift:
            return "age"
        if is_recurrent(agent):
            _tell(agent, "is recurrent")  # measuring it would require sending states
            return "age"
        if has_distribution(agent):
            return "kl"
        return "estimate" if has_log_prob(agent) else "outputs"

    def _measure(self) -> None:
        """Measure all workers' recent steps with forward passes, and store a note for each."""
        self._notes.clear()
        rows = {i: self._recent[i].measured() for i in self._has if self._recent[i].version >= 0}
        if not rows:
            return
        divergences: dict[int, float] | None = None
        if self.measure == "outputs":
            divergences = self._from_outputs(rows)
        elif self._copies is not None:
            divergences = self._exact(self._copies, rows)
        if divergences is None:
            divergences = dict(zip(rows, estimates(self._agent, list(rows.values())), strict=True))
        valid = {i: value for i, value in divergences.items() if not math.isnan(value)}
        self._notes = {i: (self._recent[i].version, value) for i, value in valid.items()}

    def _exact(self, copies: AgentCopies, rows: dict[int, Rows]) -> dict[int, float] | None:
        """Return the KL of each worker whose copy is stored, with one pass per version.

        Returns None, from now on, if torch has no formula for the distributions.
        """
        divergences: dict[int, float] = {}
        acted = {i: self._recent[i].version for i in rows}
        copies.forget({*self._sent_versions.values(), *acted.values()})
        for version in set(acted.values()):
            copy = copies.get(version, device_of(self._agent))
            mine = [i for i in rows if acted[i] == version and copy is not None]
            try:
                kl = exact(copy, self._agent, [rows[i] for i in mine]) if mine else []
            except NotImplementedError:
                self._copies, self.measure = None, "estimate"
                return None
            divergences |= zip(mine, kl, strict=True)
        return divergences

    def _from_outputs(self, rows: dict[int, Rows]) -> dict[int, float]:
        """Return estimates from the outputs of ``act`` on each worker's rows.

        Returns an empty dict, and uses the age of copies from now on, if copies act differently
        with the same random numbers, or can't act in this process.
        """
        copies = self._copies
        assert copies is not None
        copies.keep(self.version, self._pack(pack_weights))
        acted = {i: self._recent[i].version for i in rows}
        copies.forget({*self._sent_versions.values(), *acted.values(), self.version})
        found: dict[int, float] = {}
        try:
            for version in set(acted.values()):
                mine = [i for i in rows if acted[i] == version and version in copies]
                if mine:
                    values = self._compared(copies, version, [rows[i] for i in mine])
                    found |= zip(mine, values, strict=True)
        except Exception as error:  # the agent may raise anything
            self._follow_by_age(f"can't act in this process ({type(error).__name__}: {error})")
            return {}
        if not self._is_repeatable:
            self._follow_by_age("draws its actions from random numbers that can't be repeated")
            return {}
        return found

    def _compared(self, copies: AgentCopies, version: int, each: list[Rows]) -> list[float]:
        """Estimate the KL of a version for each worker's rows; NaN if actions aren't repeatable."""
        obs, sizes = joined([rows[0] for rows in each]), [len(rows[2]) for rows in each]
        old, new = (functools.partial(copies.new, one) for one in (version, self.version))
        self._is_repeatable = self._is_repeatable or is_repeatable(new, obs)
        if not self._is_repeatable:
            return [math.nan] * len(each)
        number = num_draws(sum(sizes))
        return by_outputs(draws(old, obs, number), draws(new, obs, number), sizes)

    def _follow_by_age(self, why: str) -> None:
        """Stop measuring: send the agent again, with the rule to fetch every version."""
        _tell(self._agent, why)
        self.measure, self._copies = "age", None
        self._rule = replace(self._setting, every=1)
        self._has.clear()
        self._recent = [RecentSteps() for _ in self._recent]

    def request(self, worker: int, method: str, *args: Any) -> Request:
        """Return the request for a worker to act, after :meth:`update`."""
        if worker in self._has:
            note = self._notes.pop(worker, None)
            return Request(method, args, self.version, measured=note)
        return Request(method, args, self.version, Agent(self._pack(pack_agent), self._rule))

    def sent(self, worker: int, request: Request) -> None:
        """Record that a request of :meth:`request` or :meth:`granted` was sent."""
        packed = request.weights if request.agent is None else request.agent.pickled
        if request.agent is not None:
            self._has.add(worker)
        if packed is not None:
            self.syncs[worker] += 1
            self.bytes[worker] += len(packed)
            self._sent_versions[worker] = self.version
            if self._copies is not None:
                self._copies.keep(self.version, self._pack(pack_weights))

    def granted(self, worker: int, request: Request) -> Request:
        """Return the same request with the weights that the worker requested."""
        self.requests[worker] += 1
        packed = self._pack(pack_weights)
        return request._replace(version=self.version, weights=packed, agent=None, measured=None)

    def _pack(self, pack: Callable[[Any], bytes]) -> bytes:
        if pack not in self._packed:
            self._packed[pack] = pack(self._agent)
        return self._packed[pack]

    def acted(self, worker: int, version: int, obs: Any, action: Any, log_prob: Any) -> None:
        """Record a worker's steps: trees ``[n, ...]`` and ``[n]``, or None if unknown."""
        if not self._rule.on_drift:
            return
        if log_prob is None:
            log_prob = np.full(len(tree.leaves(action)[0]), np.nan)
        self._recent[worker].add(version, obs, action, log_prob)

    def replaced(self, worker: int) -> None:
        """Record that a worker was replaced by one without an agent."""
        self._has.discard(worker)
        self._sent_versions.pop(worker, None)
        self._notes.pop(worker, None)
        self._recent[worker] = RecentSteps()


def _tell(agent: Any, why: str) -> None:
    warnings.warn(
        f"{type(agent).__name__} {why}, so its drift can't be measured: workers fetch weights "
        "after every update",
        stacklevel=6,
    )

"""The head's side of weight synchronisation: its agent's version, and how far the copies are."""

from __future__ import annotations

import contextlib
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from headrace.acting.weight_sync import SyncRule, divergence
from headrace.cluster.agent import (
    check_agent,
    device_of,
    has_log_prob,
    log_prob,
    pack_agent,
    pack_weights,
    parameters,
    to_tensors,
)
from headrace.cluster.messages import Agent, Request
from headrace.ops import tree

MAX_OBSERVATIONS = 64  # of each worker, that its divergence is measured on


class Recent:
    """What a worker did lately under one version: observations, actions, log-probabilities."""

    def __init__(self) -> None:
        self.version = -1
        self._parts: deque[tuple[Any, Any, np.ndarray]] = deque()

    def add(self, version: int, obs: Any, action: Any, log_prob: np.ndarray) -> None:
        """Take ``n`` rows (trees ``[n, ...]``, ``[n]``); only those of the newest version stay."""
        if version != self.version:
            self._parts.clear()
            self.version = version
        if len(log_prob) > MAX_OBSERVATIONS:
            even = np.linspace(0, len(log_prob) - 1, MAX_OBSERVATIONS).astype(int)
            obs, action = (tree.map_leaves(lambda x: x[even], v) for v in (obs, action))
            log_prob = log_prob[even]
        self._parts.append((obs, action, log_prob))
        spare = sum(len(part[2]) for part in self._parts) - MAX_OBSERVATIONS
        while spare >= len(self._parts[0][2]):
            spare -= len(self._parts.popleft()[2])

    def rows(self) -> tuple[Any, Any, np.ndarray]:
        """At most 64 rows of what was noted under ``version``, which has to be 0 or more."""
        joined = tree.map_leaves(lambda *x: np.concatenate(x), *self._parts)
        return tree.map_leaves(lambda x: x[-MAX_OBSERVATIONS:], joined)


class Drift:
    """Follows one agent as it learns, for workers that act with copies and fetch by a rule."""

    def __init__(self, num_workers: int, rule: SyncRule) -> None:
        self._setting, self._rule = rule, rule
        self._agent: Any = None
        self._seen: Any = None  # the parameters at ``version``
        self._has: set[int] = set()  # workers that have the agent
        self._packed: dict[Callable[[Any], bytes], bytes] = {}  # ``version``, by what packed it
        self._recent = [Recent() for _ in range(num_workers)]
        self._notes: dict[int, tuple[int, float]] = {}  # measured and not sent yet
        self.version = -1  # of the head's agent: how often it has been seen changed
        self.syncs, self.requests, self.bytes = ([0] * num_workers for _ in range(3))

    def look(self, agent: Any) -> None:
        """See whether the agent has learnt, or is another one; measure the copies if it has.

        Raises:
            ConfigError: it isn't what the contract asks for (``headrace.cluster.agent``).
        """
        if agent is not self._agent:
            check_agent(agent)
            packed = pack_agent(agent)
            self._agent, self._rule = agent, self._rule_for(agent)
            self._packed = {pack_agent: packed}
            self._has.clear()
        elif _equal(self._seen, parameters(agent)):
            return
        else:
            self._packed = {}
        self._seen = tree.map_leaves(_copied, parameters(agent))
        self.version += 1
        if self._rule.on_drift:
            self._measure()

    def _rule_for(self, agent: Any) -> SyncRule:
        if not self._setting.on_drift or has_log_prob(agent):
            return self._setting
        warnings.warn(
            f"{type(agent).__name__} has neither log_prob(obs, action) nor distribution(obs), "
            "so its drift can't be measured: workers fetch weights whenever it has learnt",
            stacklevel=5,
        )
        return replace(self._setting, every=1)

    def _measure(self) -> None:
        """One forward pass over what all workers did lately, and a note for each of them."""
        self._notes.clear()
        rows = {i: self._recent[i].rows() for i in self._has if self._recent[i].version >= 0}
        if not rows:
            return
        obs, action, before = tree.map_leaves(lambda *x: np.concatenate(x), *rows.values())
        device = device_of(self._agent)
        inputs, acted = to_tensors(obs, device), to_tensors(action, device)
        with _evaluating(self._agent):
            now = log_prob(self._agent, inputs, acted).cpu().double()
        log_ratio = now - torch.from_numpy(before).double()
        sizes = [len(part[2]) for part in rows.values()]
        for i, part in zip(rows, log_ratio.split(sizes), strict=True):
            if not part.isnan().any():
                self._notes[i] = self._recent[i].version, divergence(part)

    def request(self, worker: int, method: str, *args: Any) -> Request:
        """What to send a worker that is to act, after :meth:`look`."""
        if worker in self._has:
            note = self._notes.pop(worker, None)
            return Request(method, args, self.version, measured=note)
        return Request(method, args, self.version, Agent(self._pack(pack_agent), self._rule))

    def sent(self, worker: int, request: Request) -> None:
        """Note that this request of :meth:`request` or :meth:`granted` is on its way."""
        packed = request.weights if request.agent is None else request.agent.pickled
        if request.agent is not None:
            self._has.add(worker)
        if packed is not None:
            self.syncs[worker] += 1
            self.bytes[worker] += len(packed)

    def granted(self, worker: int, request: Request) -> Request:
        """The same request with the weights that the worker asked for."""
        self.requests[worker] += 1
        packed = self._pack(pack_weights)
        return replace(request, version=self.version, weights=packed, agent=None, measured=None)

    def _pack(self, pack: Callable[[Any], bytes]) -> bytes:
        if pack not in self._packed:
            self._packed[pack] = pack(self._agent)
        return self._packed[pack]

    def acted(self, worker: int, version: int, obs: Any, action: Any, log_prob: Any) -> None:
        """Note what a worker did: trees ``[n, ...]`` and ``[n]``, or None if it isn't known."""
        if log_prob is not None and self._rule.on_drift:
            self._recent[worker].add(version, obs, action, log_prob)

    def replaced(self, worker: int) -> None:
        """The worker is a new one, without an agent."""
        self._has.discard(worker)
        self._notes.pop(worker, None)
        self._recent[worker] = Recent()


@contextlib.contextmanager
def _evaluating(agent: Any) -> Iterator[None]:
    """Measuring must not change what a module keeps of its inputs in training (BatchNorm)."""
    modules = list(agent.modules()) if isinstance(agent, nn.Module) else []
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True


def _copied(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.detach().clone()
    return value.copy() if isinstance(value, np.ndarray) else value


def _equal(before: Any, now: Any) -> bool:
    """Whether two trees of parameters hold the same values; NaN equals nothing."""
    if isinstance(before, dict) and isinstance(now, dict):
        return before.keys() == now.keys() and all(_equal(before[k], now[k]) for k in before)
    if isinstance(before, tuple) and isinstance(now, tuple):
        return len(before) == len(now) and all(map(_equal, before, now))
    if isinstance(before, Tensor) and isinstance(now, Tensor):
        return before.dtype == now.dtype and torch.equal(before, now)
    if isinstance(before, np.ndarray) and isinstance(now, np.ndarray):
        return before.dtype == now.dtype and np.array_equal(before, now)
    return type(before) is type(now) and bool(before == now)

"""Divergence of a worker's copy from the agent: KL(copy || agent) in nats.

ClusterEnv (Lafuente-Mercado 2025), section III-C: the mean, over recent observations ``s``, of

    KL(copy(.|s) || agent(.|s)) = sum over actions a of copy(a|s) log(copy(a|s) / agent(a|s))

It is exact for agents with ``distribution``. The head keeps the weights of every version that a
worker acts with, so no message is needed. For agents with only ``log_prob`` it is estimated from
the sampled actions (``headrace.actors.weight_sync.divergence``), and for agents with neither from
the outputs of ``act`` (``headrace.cluster_env.output_divergence``).
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.distributions import kl_divergence

from headrace.actors.weight_sync import divergence
from headrace.cluster_env.agent import device_of, log_prob, to_tensors, with_weights
from headrace.ops import tree

Rows = tuple[Any, Any, np.ndarray]  # observations, actions [n, ...]; log-probabilities [n]


class AgentCopies:
    """Versions of the agent that workers act with.

    Args:
        packed: the agent (``headrace.cluster_env.agent.pack_agent``).
    """

    def __init__(self, packed: bytes) -> None:
        self._packed, self._agent = packed, None
        self._loaded = -1  # version of ``_agent``
        self._weights: dict[int, bytes] = {}

    def keep(self, version: int, weights: bytes) -> None:
        """Store a version (``pack_weights``)."""
        self._weights[version] = weights

    def forget(self, others_than: set[int]) -> None:
        """Drop all versions but these."""
        self._weights = {v: w for v, w in self._weights.items() if v in others_than}

    def get(self, version: int, device: torch.device) -> Any:
        """Return the agent of a stored version, valid until the next call, or None."""
        if version not in self._weights:
            return None
        if self._agent is None:
            self._agent = pickle.loads(self._packed)
        if self._loaded != version:
            self._agent = with_weights(self._agent, self._weights[version])
            self._loaded = version
        return self._agent.to(device) if isinstance(self._agent, nn.Module) else self._agent

    def new(self, version: int) -> Any:
        """Return a new copy of a stored version on the CPU, with its own random generators."""
        return with_weights(pickle.loads(self._packed), self._weights[version])

    def __contains__(self, version: int) -> bool:
        return version in self._weights


@torch.no_grad()
def exact(copy: Any, agent: Any, each: Sequence[Rows]) -> list[float]:
    """Return the mean KL(copy || agent) over the observations of each worker.

    Raises:
        NotImplementedError: torch has no formula for these distributions.
    """
    obs = to_tensors(joined([rows[0] for rows in each]), device_of(agent))
    with evaluating(copy), evaluating(agent):
        kl = kl_divergence(copy.distribution(obs), agent.distribution(obs))
    sizes = [len(rows[2]) for rows in each]
    kl = (
        kl.reshape(sum(sizes), -1).sum(1).double()
    )  # a distribution may keep an action's dimensions
    return [float(part.mean()) for part in kl.split(sizes)]


def estimates(agent: Any, each: Sequence[Rows]) -> list[float]:
    """Estimate the mean KL from the actions that the copies sampled in these observations."""
    obs, action, before = joined(each)
    device = device_of(agent)
    with evaluating(agent):
        now = log_prob(agent, to_tensors(obs, device), to_tensors(action, device)).cpu().double()
    log_ratio = now - torch.from_numpy(before).double()
    return [divergence(part) for part in log_ratio.split([len(rows[2]) for rows in each])]


def joined(each: Sequence[Any]) -> Any:
    """Concatenate trees of rows."""
    return tree.map_leaves(lambda *x: np.concatenate(x), *each)


@contextlib.contextmanager
def evaluating(agent: Any) -> Iterator[None]:
    """Run a module in evaluation mode, so that it keeps no statistics (BatchNorm)."""
    modules = list(agent.modules()) if isinstance(agent, nn.Module) else []
    training = [module for module in modules if module.training]
    for module in training:
        module.training = False
    try:
        yield
    finally:
        for module in training:
            module.training = True

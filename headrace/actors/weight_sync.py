"""Decides when actors pull weights: at every update, every k updates, or on policy divergence.

    learner  measures   KL(behaviour || learner) on what it received, one number
       │
       ▼  returned with the slot
    actor    keeps the running mean, and pulls weights when it exceeds a threshold

Drift-triggered synchronisation is the adaptive policy synchronisation (AAPS) of ClusterEnv, section
III-C. There the actor compares its policy with a cached copy of itself, which never differs. Here
the learner measures, because it has both the current policy and the actions. A measurement belongs
to the version that acted, and is ignored once other weights were pulled.

This module is independent of the transport. A learner returns measurements in the header of a slot
(``Header.divergence``), which may arrive after its actor has pulled again.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass
from typing import Annotated

import torch
from torch import Tensor

from headrace.errors import require
from headrace.validation import ranges
from headrace.validation.fields import check

WINDOW = 4  # measurements in the running mean


@dataclass(frozen=True)
class SyncRule:
    """Rule for pulling weights; see :func:`sync_rule`."""

    every: int | None = 1  # pull when this many versions behind; None: on divergence
    kl_threshold: float = 0.0  # nats; pull when the running mean is strictly above
    max_lag: int | None = None  # pull when this many versions behind, in any case

    @property
    def on_drift(self) -> bool:
        """True if divergence has to be measured."""
        return self.every is None


def sync_rule(weight_sync: str, kl_threshold: float, max_lag: int | None = None) -> SyncRule:
    """Return the rule that the settings describe.

    Args:
        weight_sync: ``"every"`` version, ``"every-<k>"`` versions, or ``"adaptive"``.
        kl_threshold: nats, for ``"adaptive"``.
        max_lag: versions behind at which weights are pulled regardless of divergence; None: never.

    Raises:
        ConfigError: a setting is invalid.
    """
    kl_threshold = check("kl_threshold", Annotated[float, ranges.NATS], kl_threshold)
    max_lag = check("max_policy_lag", Annotated[int | None, ranges.VERSIONS], max_lag)
    every = re.fullmatch("every(?:-0*([1-9][0-9]{0,5}))?", check("weight_sync", str, weight_sync))
    valid = "every, every-<k> with k of 1 to 999999 (as in every-8), or adaptive (nearest: every)"
    require(weight_sync == "adaptive" or every is not None, "weight_sync", weight_sync, valid)
    return SyncRule(int(every[1] or 1) if every else None, kl_threshold, max_lag)


class Follower:
    """Tracks one actor's version of the weights and its divergence from the learner."""

    def __init__(self, rule: SyncRule) -> None:
        self._rule = rule
        self._measured: deque[float] = deque(maxlen=WINDOW)
        self.version = -1  # of the weights that it acts with; -1: none yet

    @property
    def divergence(self) -> float | None:
        """Mean of the latest measurements of this version in nats; None if there are none."""
        return sum(self._measured) / len(self._measured) if self._measured else None

    def note(self, version: int, divergence: float) -> None:
        """Add a measurement of ``version``; ignored unless it is the current one."""
        if version == self.version:
            self._measured.append(divergence)

    def wants(self, latest: int) -> bool:
        """Return True if weights are due, given the learner's ``latest`` version."""
        if self.version < 0:
            return True
        lag, rule = latest - self.version, self._rule
        if lag <= 0:
            return False
        if rule.max_lag is not None and lag >= rule.max_lag:
            return True
        if rule.every is not None:
            return lag >= rule.every
        drift = self.divergence
        return drift is not None and drift > rule.kl_threshold

    def fetched(self, version: int) -> None:
        """Record that weights of ``version`` are in use from now on."""
        self.version = version
        self._measured.clear()


def divergence(log_ratio: Tensor) -> float:
    """Return the mean of ``(r - 1) - log r`` with ``r = pi / mu``, an estimate of KL(mu || pi).

    The estimate is unbiased.

    Args:
        log_ratio: ``[n]`` float, log pi - log mu of actions that were drawn from mu, n >= 1.

    Returns:
        divergence in nats, never negative.
    """
    exact = log_ratio.double()
    return float((torch.expm1(exact) - exact).mean())

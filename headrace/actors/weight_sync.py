"""When the side that acts fetches the learner's weights: at every update, every k, or on drift.

    learner  measures   KL(behaviour || learner) on what it received, one number
       │
       ▼  travels beside whatever goes back anyway
    actor    notes it, keeps the running mean, and asks for weights when that exceeds a threshold

Drift-triggered synchronisation is the adaptive policy synchronisation (AAPS) of ClusterEnv, section
III-C. There the actor compares its policy with a cached copy of itself, which never differs; here
the learner measures, since it has both the current policy and what was acted. A measurement belongs
to the version that acted: it is ignored once other weights were fetched.

Nothing here knows how weights or numbers travel. Between a learner and its actors it is in the
header of a slot (``Header.divergence``), which may come back after its actor fetched again.
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
    """When to fetch weights; see :func:`sync_rule`."""

    every: int | None = 1  # at so many versions behind; None: on drift
    kl_threshold: float = 0.0  # nats; drift is a running mean strictly above it
    max_lag: int | None = None  # at so many versions behind, drift or not

    @property
    def on_drift(self) -> bool:
        """Whether anybody has to measure."""
        return self.every is None


def sync_rule(weight_sync: str, kl_threshold: float, max_lag: int | None = None) -> SyncRule:
    """The rule that the settings describe.

    Args:
        weight_sync: ``"every"`` version, ``"every-<k>"`` versions, or ``"adaptive"``.
        kl_threshold: nats, for ``"adaptive"``.
        max_lag: versions behind at which weights are fetched whatever the drift; None: never.

    Raises:
        ConfigError: a setting is none of these.
    """
    kl_threshold = check("kl_threshold", Annotated[float, ranges.NATS], kl_threshold)
    max_lag = check("max_policy_lag", Annotated[int | None, ranges.VERSIONS], max_lag)
    every = re.fullmatch("every(?:-0*([1-9][0-9]{0,5}))?", check("weight_sync", str, weight_sync))
    valid = "every, every-<k> with k of 1 to 999999 (as in every-8), or adaptive (nearest: every)"
    require(weight_sync == "adaptive" or every is not None, "weight_sync", weight_sync, valid)
    return SyncRule(int(every[1] or 1) if every else None, kl_threshold, max_lag)


class Follower:
    """What one actor knows of its distance from the learner."""

    def __init__(self, rule: SyncRule) -> None:
        self._rule = rule
        self._measured: deque[float] = deque(maxlen=WINDOW)
        self.version = -1  # of the weights that it acts with; -1: none yet

    @property
    def divergence(self) -> float | None:
        """Running mean of the latest measurements of this version, nats; None: there are none."""
        return sum(self._measured) / len(self._measured) if self._measured else None

    def note(self, version: int, divergence: float) -> None:
        """Take a measurement of what ``version`` did; ignored unless it is the current one's."""
        if version == self.version:
            self._measured.append(divergence)

    def wants(self, latest: int) -> bool:
        """Whether to fetch weights, now that the learner's version is ``latest``."""
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
        """Weights of ``version`` are in use from now on."""
        self.version = version
        self._measured.clear()


def divergence(log_ratio: Tensor) -> float:
    """Mean of ``(r - 1) - log r`` with ``r = pi / mu``: an unbiased estimate of KL(mu || pi).

    Args:
        log_ratio: ``[n]`` float, log pi - log mu of actions that were drawn from mu, n >= 1.

    Returns:
        nats, never negative.
    """
    exact = log_ratio.double()
    return float((torch.expm1(exact) - exact).mean())

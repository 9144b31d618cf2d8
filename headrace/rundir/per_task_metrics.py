"""Results of each task, each agent of a game, and each policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from headrace.nn.policy_mapping import PolicyMapping

_FILES = {"episode_return": "episodic_return", "episode_length": "episodic_length"}


@dataclass(frozen=True)
class PartResult:
    """Result of one task or agent: its last training episodes, and steps."""

    episode_return: float | None
    episode_length: float | None
    episodes: int  # since the start
    env_steps: int  # trained on, since the start

    def scalars(self) -> dict[str, float]:
        """Return the metrics by the last part of their names in files; absent while None."""
        return _scalars(self)


@dataclass(frozen=True)
class PolicyResult:
    """Result of one of several policies: episodes of its agents, and its losses.

    Losses are over the updates since the previous result, like those of the run.
    """

    agents: tuple[str, ...]  # that it plays
    episode_return: float | None
    episode_length: float | None
    episodes: int
    env_steps: int
    policy_loss: float | None
    value_loss: float | None
    entropy: float | None
    approx_kl: float | None
    clipfrac: float | None
    explained_variance: float | None
    grad_norm: float | None

    def scalars(self) -> dict[str, float]:
        """See :class:`PartResult`."""
        return _scalars(self)


_LOSSES = tuple(f.name for f in fields(PolicyResult))[5:]


def by_policy(
    mapping: PolicyMapping | None,
    by_agent: Mapping[str, Any],
    means: Mapping[str, float],
    prefix: str,
) -> dict[str, PolicyResult] | None:
    """Return the result of each policy by name; None for a single policy.

    Args:
        by_agent: episodes of each agent.
        means: means of all metrics, those of a policy under ``<prefix><its name>/``.
    """
    if mapping is None:
        return None
    results = {}
    for name in mapping.policies:
        each = [by_agent[agent] for agent in mapping.of(name)]
        returns, lengths = ([x for one in each for x in getattr(one, f"{of}s")]
                            for of in ("return", "length"))  # fmt: skip
        results[name] = PolicyResult(
            mapping.of(name),
            float(np.mean(returns)) if returns else None,
            float(np.mean(lengths)) if lengths else None,
            sum(one.count for one in each),
            sum(one.env_steps for one in each),
            *(means.get(f"{prefix}{name}/{loss}") for loss in _LOSSES),
        )
    return results


def _scalars(part: Any) -> dict[str, float]:
    values = {_FILES.get(f.name, f.name): getattr(part, f.name) for f in fields(part)}
    values.pop("agents", None)
    return {name: float(value) for name, value in values.items() if value is not None}

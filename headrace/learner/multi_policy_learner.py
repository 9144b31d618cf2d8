"""Trains several policies at once, each with its own learner on the columns of its agents.

    batch of all columns ──► chaser's columns ──► Learner: loss, gradient, optimiser, statistics
                        ╰──► runner's columns ──► a separate Learner

The learners share nothing, so each policy trains as it would alone on its columns.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.errors import ConfigError, NonFinite
from headrace.learner.learner import Learner
from headrace.learner.metrics import mean_metrics
from headrace.nn.multi_policy import MultiPolicy
from headrace.types import Batch, Fresh, Group, SingleLearner

METRICS = "policies/"  # prefix: a policy's metrics are policies/<name>/<metric>


class MultiPolicyLearner:
    """Owns a :class:`Learner` for each policy; they update one after the other.

    Args:
        policy: moved to ``device``.
        algorithm: hyperparameters of all learners.
        num_threads, device: see :class:`Learner`.
        group: group of this learner alone.
    """

    def __init__(
        self,
        policy: MultiPolicy,
        algorithm: Hyperparameters,
        num_threads: int = 1,
        *,
        device: str = "cpu",
        group: Group | None = None,
    ) -> None:
        self.policy, self.group = policy.to(device), SingleLearner() if group is None else group
        how: dict[str, Any] = {"num_threads": num_threads, "device": device, "group": self.group}
        self.learners = {
            name: Learner(member, algorithm, **how) for name, member in policy.policies.items()
        }
        self.device = torch.device(device)
        self.own: list[dict[str, float]] = []

    @property
    def by_hand(self) -> bool:
        """See :class:`Learner`."""
        return all(one.by_hand for one in self.learners.values())

    def update(
        self, fresh: Fresh, learning_rate: float, values: Mapping[str, float] = MappingProxyType({})
    ) -> dict[str, float]:
        """Update every policy from one batch of all columns.

        A policy without valid steps in the batch is not updated.

        Returns:
            means of metrics over policies, and each policy's own metrics under ``METRICS``.

        Raises:
            NonFinite: as :meth:`Learner.step`; names the policy.
            ConfigError: a custom algorithm asks for several batches.
        """
        batch, each = fresh(), dict[str, dict[str, float]]()
        self.own = []
        for (name, learner), part in zip(self.learners.items(), self._parts(batch), strict=True):
            if not part.valid.any():
                continue
            try:
                each[name] = learner.update(_once(part), learning_rate, values)
            except NonFinite as error:
                raise NonFinite(f"policy {name}: {error}") from error
            self.own += learner.own
        metrics = mean_metrics(list(each.values()))
        for name, own in each.items():
            metrics |= {f"{METRICS}{name}/{metric}": value for metric, value in own.items()}
        return metrics

    def _parts(self, batch: Batch) -> Iterator[Batch]:
        """Yield the columns of each policy, one policy at a time because each is a copy."""
        return (self.policy.part(batch, columns) for columns in self.policy.rows(batch.core))

    def published(self, version: int) -> None:
        """See :class:`Learner`."""
        for one in self.learners.values():
            one.published(version)

    def take_lags(self) -> dict[str, int]:
        """See :class:`Learner`; sums and maxima over all policies."""
        lags: dict[str, int] = {}
        for one in self.learners.values():
            for name, value in one.take_lags().items():
                merge = max if name.endswith("_max") else operator.add
                lags[name] = merge(lags.get(name, 0), value)
        return lags

    def log_ratio(self, batch: Batch) -> Tensor:
        """See :meth:`Learner.log_ratio`; each column is evaluated by its own policy."""
        log_ratio = torch.empty_like(batch.log_prob)
        learners, every = self.learners.values(), self.policy.rows(batch.core)
        for learner, columns in zip(learners, every, strict=True):
            log_ratio[:, columns] = learner.log_ratio(self.policy.part(batch, columns))
        return log_ratio

    def state_dict(self) -> dict[str, Any]:
        """Return the state of each learner by its policy's name."""
        each = {name: one.state_dict() for name, one in self.learners.items()}
        return {"policies": each}

    def own_state(self) -> dict[str, Any]:
        """Return each learner's own state by its policy's name."""
        return {name: one.own_state() for name, one in self.learners.items()}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore the result of :meth:`state_dict`."""
        for name, one in self.learners.items():
            one.load_state_dict(saved["policies"][name])

    def load_own_state(self, of_ranks: list[dict[str, Any]]) -> None:
        """Restore the results of :meth:`own_state`."""
        for name, one in self.learners.items():
            one.load_own_state([state[name] for state in of_ranks])

    def close(self) -> None:
        """Stop the threads."""
        for one in self.learners.values():
            one.close()


AnyLearner: TypeAlias = Learner | MultiPolicyLearner


def _once(batch: Batch) -> Fresh:
    """Return a function that returns this batch at its only call."""
    batches = [batch]

    def fresh() -> Batch:
        if not batches:
            raise ConfigError(
                "several policies need an algorithm that calls fresh() once in batches(): each "
                "update has one batch of all agents"
            )
        return batches.pop()

    return fresh

"""Updates a policy: fresh batch → loss → gradient → optimiser step.

Losses are sums over steps. A batch can therefore be split into chunks of columns that fit the
processor's cache and are processed by several threads. Gradients of the chunks are added in a
fixed order and divided by the number of valid steps, so results are the same, bit for bit, in
every run. Several learners, each with a part of the batch, all-reduce gradients, metrics and
counts in one vector per optimiser step, and all take the same step.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, cast

import torch
from torch import Tensor

from headrace.algos.common import Hyperparameters
from headrace.algos.minibatches import Minibatches
from headrace.errors import ConfigError, NonFinite
from headrace.learner import learner_state
from headrace.learner.action_means import mean_size
from headrace.learner.batches import real_rows
from headrace.learner.chunks import ChunkedPolicy
from headrace.learner.finite_checks import check_weights, is_finite, non_finite_error, not_finite
from headrace.learner.gradient_allreduce import GradientAllReduce
from headrace.learner.gradients import Gradients, add, joined
from headrace.learner.metrics import (
    as_numbers,
    check_names,
    mean_metrics,
    of_trained_values,
    step_metrics,
)
from headrace.learner.optimizer import Optimizer, flatten_parameters
from headrace.learner.staleness import LagCounter
from headrace.learner.value_targets import ValueTargets
from headrace.nn.normalizer import Normalizer
from headrace.nn.policy import Policy
from headrace.ops.moments import Moments, moments, of_all
from headrace.ops.rewards import transformed
from headrace.processes import full_float32
from headrace.schedules import at_start, with_values
from headrace.types import Batch, Fresh, Group, Metrics, SingleLearner

_NO_VALUES: Mapping[str, float] = MappingProxyType({})
_MAX_REWARD = 10.0  # in standard deviations of returns


class Learner:
    """Owns the trained parameters and the optimiser.

    Args:
        policy: moved to ``device``; its parameters become views of one flat tensor.
        algorithm: a dataclass of ``headrace.algos``.
        num_threads: number of chunks processed at a time (1 on an accelerator).
        chunk_steps: largest number of steps per chunk, in whole columns; fewer if they need much
            memory.
        group: learners that take each step together; None: only this one.
    """

    def __init__(
        self,
        policy: Policy,
        algorithm: Hyperparameters,
        num_threads: int = 1,
        chunk_steps: int = 4096,
        *,
        device: str = "cpu",
        group: Group | None = None,
    ) -> None:
        self.group = SingleLearner() if group is None else group
        self.policy = policy.to(device)
        algorithm = at_start(algorithm)
        self.algorithm, self.device = algorithm, torch.device(device)
        full_float32(device)  # as in the actors
        flat = flatten_parameters(policy)
        kind, eps, fused = algorithm.optimizer, algorithm.optimizer_eps, algorithm.fused
        self.optimizer = Optimizer(kind, flat, eps, fused)
        self.state = algorithm.init(policy)
        learner_state.check_state(self.state, algorithm)
        self._gradients = Gradients(policy, algorithm, self.state, flat)
        self._chunks = self._gradients.chunks(num_threads, chunk_steps)
        self._whole_update = self._gradients.whole_update(self.optimizer, self._chunks)
        whole = (self.by_hand and policy.core is None) or self.device.type != "cpu"
        chunked = ChunkedPolicy(policy, self._chunks)
        self._for_targets: Any = self._gradients.for_targets if whole else chunked
        self.returns = Normalizer(1).to(device) if algorithm.normalize_returns else None
        self.targets = ValueTargets(policy)
        self.num_steps = 0  # optimiser steps
        self.ages = LagCounter()
        self.own: list[dict[str, float]] = []  # metrics of this learner's data, latest update
        self._reward: Tensor | None = None  # of the latest fresh batch, before any transform
        self._last_norm: float | None = None  # gradient norm of the latest step
        self.allreduce = GradientAllReduce(self.group)

    @property
    def by_hand(self) -> bool:
        """Return True if hand-written derivatives (``fused``) replace autograd."""
        return self._gradients.by_hand

    def update(
        self, fresh: Fresh, learning_rate: float, values: Mapping[str, float] = _NO_VALUES
    ) -> dict[str, float]:
        """Take all optimiser steps of one update; returns the mean metrics over its steps.

        Running statistics of observations change only after all steps, as the actors used them.

        Args:
            values: new values of hyperparameters, by name; others are unchanged.
        """
        seen: list[list[Moments]] = []
        sizes: list[float] = []

        def noted() -> Batch:
            batch = fresh()
            seen.append(self._statistics(batch))
            size = mean_size(self.policy, batch.obs, batch.first, batch.core)
            sizes.extend([] if size is None else [size])
            if self.returns is not None:
                self.returns.take(seen[-1].pop())
            return batch

        metrics = self.train(noted, learning_rate, values)
        for moments_of_torsos in seen:
            self.policy.take(moments_of_torsos)
        return metrics | ({"mean_size": sum(sizes) / len(sizes)} if sizes else {})

    def train(
        self, fresh: Fresh, learning_rate: float, values: Mapping[str, float] = _NO_VALUES
    ) -> dict[str, float]:
        """Like :meth:`update`, but running statistics of observations stay as they are."""
        if values:
            self.algorithm = self._gradients.algorithm = with_values(self.algorithm, values)
            self.optimizer.eps = self.algorithm.optimizer_eps
        self._gradients.begin_update()

        self._reward = None

        def scaled() -> Batch:
            batch = fresh()
            self._reward = batch.reward
            reward = transformed(self._scaled(batch), self.algorithm.reward_transform)
            reward = reward * self.algorithm.reward_scale
            return replace(batch, reward=reward, discounted_return=())

        self.own = []
        batches = self.algorithm.batches(self._for_targets, scaled, self.state, self.group)
        at_once = self.group.size == 1 and self._gradients.is_compiled
        whole = self._whole_update if at_once else None
        if whole is not None and whole.fits(batches, self.algorithm, self.state):
            per_step = self._steps_at_once(cast(Minibatches, batches), learning_rate)
        else:
            per_step = self._steps(iter(batches), learning_rate)
        if self._reward is None and not per_step:  # the run would never end
            name = type(self.algorithm).__name__
            raise ConfigError(f"{name}.batches must call fresh() or yield a batch in each update")
        self.targets.move()
        check_weights(self.optimizer.memory["flat"], self._where, learning_rate)
        return mean_metrics(per_step)

    def _steps(self, batches: Iterator[Batch], learning_rate: float) -> list[dict[str, float]]:
        """Take an optimiser step on each batch; returns the metrics of each."""
        per_step: list[dict[str, float]] = []
        for batch in batches:
            self.ages.step(batch.version, self.num_steps)
            per_step.append(self.step(batch, learning_rate))
            if self.algorithm.after_step(self.policy, self.state, per_step[-1]):
                if isinstance(batches, Generator):
                    batches.close()
                break
        return per_step

    def _steps_at_once(self, batches: Minibatches, learning_rate: float) -> list[dict[str, float]]:
        """Take all steps in one compiled call, with the results of :meth:`_steps`."""
        assert self._whole_update is not None
        steps = self._whole_update.steps(batches, self.algorithm, self.state, learning_rate)
        per_step: list[dict[str, float]] = []
        for i in range(steps.taken):
            self.ages.step(batches.batch.version, self.num_steps)
            values, count = steps.sums[i], steps.counts[i]
            metrics = step_metrics(values, count)
            self.own.append(metrics.copy())
            per_step.append(self._noted(metrics, values, count, steps.norms[i]))
            self.algorithm.after_step(self.policy, self.state, per_step[-1])
        if steps.taken < len(steps.sums):
            raise self._unsafe(steps.sums[-1], steps.gradient, batches.batch, learning_rate)
        return per_step

    @property
    def _where(self) -> str:
        """Describe the next optimiser step, with the update if it is known."""
        version, step = self.ages.version, f"optimiser step {self.num_steps + 1}"
        return step if version is None else f"update {version + 1}, {step}"

    def published(self, version: int) -> None:
        """Record that actors get the current weights as this version."""
        self.ages.published(version, self.num_steps)

    def take_lags(self) -> dict[str, int]:
        """Return policy lags since the last call; see :meth:`LagCounter.take`."""
        return self.ages.take()

    def watch(self, fresh: Fresh, num_steps: int) -> None:
        """Count an update whose ``num_steps`` optimiser steps the actors have done."""
        self.policy.take(self._statistics(fresh()))
        self.num_steps += num_steps

    def _statistics(self, batch: Batch) -> list[Moments]:
        """Return moments over all learners: observations by torso, then returns, if normalised."""
        own = self.policy.moments(real_rows(batch)) if self.policy.normalizers else []
        if self.returns is not None:
            own.append(moments(batch.discounted_return[batch.valid].unsqueeze(1)))
        return of_all(own, self.group.gather)

    def _scaled(self, batch: Batch) -> Tensor:
        """Return rewards, in standard deviations of discounted returns with normalize_returns."""
        if self.returns is None:
            return batch.reward
        return (batch.reward * self.returns.scale).clamp(-_MAX_REWARD, _MAX_REWARD)

    def step(self, batch: Batch, learning_rate: float) -> dict[str, float]:
        """Take one optimiser step; returns the mean metrics before it.

        Raises:
            ConfigError: a custom loss reports no sums that are needed here.
            NonFinite: a loss or gradient is not finite, with all learners; nothing was changed.
        """
        gradient, sums, count = self.gradient(batch)
        if self._last_norm is None:  # the first step of this process
            check_names(sums, type(self.algorithm).__name__)
        values = as_numbers(sums)
        metrics = step_metrics(values, count)
        self.own.append(metrics.copy())
        center = self.allreduce.center
        if self.group.size > 1:
            gradient, values, count = self.allreduce.added_up(gradient, values, count)
            metrics = step_metrics(values, count)
        norm, longest = self.optimizer.divide(gradient, count), self.algorithm.max_grad_norm
        if not is_finite(values, norm, longest):
            raise self._unsafe(values, gradient, batch, learning_rate)
        self.optimizer.clipped_step(gradient, norm, longest, learning_rate)
        return self._noted(metrics, values, count, norm, center)

    def _unsafe(
        self, values: dict[str, float], gradient: Tensor, batch: Batch, learning_rate: float
    ) -> NonFinite:
        """Return the error for an optimiser step that is not taken."""
        quantities = not_finite(values, gradient, self.policy.named_parameters())
        reward = batch.reward if self._reward is None else self._reward
        return non_finite_error(self._where, quantities, self._last_norm, reward, learning_rate)

    def _noted(
        self,
        metrics: dict[str, float],
        values: dict[str, float],
        count: int,
        norm: float,
        center: float = 0.0,
    ) -> dict[str, float]:
        """Count a completed optimiser step, and return its metrics.

        Args:
            values: sums of metrics over ``count`` valid steps.
            norm: norm of the mean gradient.
            center: value that was subtracted from the value targets in these sums.
        """
        self.targets.note(values, count, center)
        metrics["grad_norm"] = self._last_norm = norm
        self.num_steps += 1
        return of_trained_values(metrics, values)

    def gradient(self, batch: Batch) -> tuple[Tensor, Metrics, int]:
        """Return the gradient of the SUMMED loss as a flat vector, sums of metrics, valid steps."""
        with self._gradients.frozen_weights():
            parts = self._chunks.of(self._gradients, batch)
            pieces, sums = next(parts)
            gradient = joined(pieces)
            del pieces
            for more_pieces, more_sums in parts:
                add(gradient, more_pieces)
                sums = {name: sums[name] + more_sums[name] for name in sums}
        return gradient, sums, int(batch.valid.sum())

    def log_ratio(self, batch: Batch) -> Tensor:
        """Return log pi - log mu of the actions ``[T, B]`` under the policy, without gradient."""
        return torch.cat(list(self._chunks.of(self._chunk_log_ratio, batch)), 1)

    @torch.no_grad()
    def _chunk_log_ratio(self, chunk: Batch) -> Tensor:
        params, _, _ = self.policy(chunk.obs, chunk.first, chunk.core)
        params = params[: len(chunk.valid)]  # without the bootstrap row
        return self.policy.distribution.log_prob(params, chunk.action) - chunk.log_prob

    def state_dict(self) -> dict[str, Any]:
        """See :func:`headrace.learner.learner_state.state_of`."""
        return learner_state.state_of(self)

    def own_state(self) -> dict[str, Any]:
        """See :func:`headrace.learner.learner_state.own_state_of`."""
        return learner_state.own_state_of(self)

    def load_own_state(self, of_ranks: list[dict[str, Any]]) -> None:
        """See :func:`headrace.learner.learner_state.load_own_state`."""
        learner_state.load_own_state(self, of_ranks)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Restore what :meth:`state_dict` returned."""
        learner_state.load_state(self, saved)

    def close(self) -> None:
        """Stop the threads."""
        self._chunks.close()

"""Collects rollouts from actors into batches in the learner's memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial

from headrace.actors.rollout_source import RolloutSource, Taken
from headrace.actors.weight_sync import divergence
from headrace.config import Config
from headrace.distributed.preemption import Preemption
from headrace.errors import ActorFailed
from headrace.learner.batches import gather
from headrace.learner.hogwild import own_metrics
from headrace.learner.multi_policy_learner import AnyLearner
from headrace.rundir.custom_metrics import CustomMetrics
from headrace.rundir.early_returns import EarlyReturns
from headrace.rundir.episodes import Episodes
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.trainer.prefetch import BatchPrefetcher
from headrace.transport.queue import Header
from headrace.types import Batch, Rollout

_DROPS_PER_SLOT = 3  # dropped rollouts in a row, per slot, that fail the run


class BatchCollector:
    """Collects batches from a rollout source, drops stale rollouts and measures policy divergence.

    Args:
        config: settings of one learner.
        source: source of its rollouts.
        episodes: receives completed episodes.
        learner: owner of the memory that batches are copied to.
        preemption: preempts the other learners' collection.
        ahead: gathers the next batch early; None: chosen by device.
        reported: receives metrics found in ``info`` by actors.
        early: receives the ends of episodes for the curve of returns.
    """

    def __init__(
        self,
        config: Config,
        source: RolloutSource,
        episodes: Episodes,
        learner: AnyLearner,
        preemption: Preemption,
        ahead: BatchPrefetcher | None = None,
        reported: CustomMetrics | None = None,
        early: EarlyReturns | None = None,
    ) -> None:
        self._early_returns = EarlyReturns() if early is None else early
        self._reported = CustomMetrics() if reported is None else reported
        self._config, self._source, self._episodes = config, source, episodes
        self._learner, self._preemption = learner, preemption
        self.taken: list[int] = []  # slots of the latest batch
        if ahead is None and learner.device.type != "cpu" and config.algo.max_lag > 0:
            ahead = BatchPrefetcher(learner.device)
        self._ahead = ahead
        self._early: list[list[Taken]] = []  # by task, prefetched for the next batch

    def begin(self, meter: MetricAccumulator, updates: int, stopped: Callable[[], bool]) -> None:
        """Begin an update.

        Args:
            meter: accumulates the metrics of this update.
            updates: updates so far, the reference for policy lag.
            stopped: returns True to stop waiting for rollouts.
        """
        self._meter, self._updates, self._stopped = meter, updates, stopped

    def fresh(self) -> Batch:
        """Return the next batch, in learner-owned memory.

        Raises:
            ActorFailed, Stopped: as :meth:`RolloutSource.take`.
        """
        clock = self._learner.group.clock
        with clock.phase("rollout"), self._preemption.collecting(self._updates):
            self.release()  # an update that needs several batches has copied the earlier ones
            rollouts = self._take()
            batch = (self._ahead or partial(gather, device=self._learner.device))(rollouts)
        self._look_ahead()
        if self._config.sync.on_drift:
            self._note_drift(batch)
        return batch

    def _look_ahead(self) -> None:
        """Prefetch the next batch if all its rollouts are ready.

        Prefetched rollouts keep their slots, and their lag is checked when they are used, so the
        bound on policy lag doesn't change.
        """
        if self._ahead is not None and self._source.has(self._config.rollouts_per_update):
            tasks = range(self._source.num_tasks)
            self._early = [self._source.take(self._share, self._stopped, task) for task in tasks]
            self._ahead.begin([rollout for early in self._early for _, _, rollout in early])

    @property
    def _share(self) -> int:
        """Number of rollouts per task in a batch."""
        return self._config.rollouts_per_update // self._source.num_tasks

    def _take(self) -> list[Rollout]:
        early, self._early = self._early, []
        rollouts = [
            rollout
            for task in range(self._source.num_tasks)
            for rollout in self._take_of(task, early[task] if early else [])
        ]
        self._meter.note(queue_depth=self._source.depth)
        return rollouts

    def _take_of(self, task: int, early: list[Taken]) -> list[Rollout]:
        """Take one task's share of the batch, beginning with the ``early`` rollouts."""
        meter, rollouts, dropped = self._meter, list[Rollout](), list[Header]()
        oldest = self._config.max_first_lag
        while (missing := self._share - len(rollouts)) > 0:
            taken, early = early or self._source.take(missing, self._stopped, task), []
            for slot, header, rollout in taken:
                ends = rollout.episode_return.numpy(), rollout.episode_length.numpy()
                self._episodes.add(*ends, task)
                valid = ~rollout.first[1:]
                self._early_returns.add(rollout.episode_return, valid, meter.env_steps, task)
                if infos := self._source.message(slot):
                    tasks = self._episodes.tasks
                    self._reported.add(json.loads(infos), tasks[task] if tasks else None)
                meter.pulls += header.pulled
                lag = header.lag if header.lag >= 0 else self._updates - header.version
                if oldest is not None and lag > oldest:
                    meter.dropped += 1
                    self._source.release([slot])
                    dropped.append(header)
                    self._check_progress(dropped, oldest)
                    continue
                dropped.clear()
                self.taken.append(slot)
                rollouts.append(rollout)
                meter.rollout(header)
                self._episodes.count_trained(task, header.valid_steps)
                if self._episodes.agents:
                    self._episodes.count_trained_by_agents(valid.sum(0).numpy())
                if header.lag >= 0:  # its actor trained on it, once
                    sums = {"num_lags": 1, "lag_sum": lag, "lag_steps_sum": lag}
                    meter.count(**sums, lag_max=lag, lag_steps_max=lag)
                for metrics in own_metrics(rollout):
                    meter.note(**metrics)
        return rollouts

    def _check_progress(self, dropped: list[Header], oldest: int) -> None:
        """Raise ActorFailed if actors have stopped fetching weights.

        The learner publishes nothing while it waits. So only rollouts that were already in flight
        can be too old, unless actors keep acting with old weights.

        Args:
            dropped: headers of the rollouts dropped in a row.
            oldest: largest accepted age of a rollout, in updates.
        """
        if len(dropped) < _DROPS_PER_SLOT * self._source.num_slots:
            return
        recent = dropped[-self._source.num_slots :]
        actors = ", ".join(map(str, sorted({header.actor for header in recent})))
        newest = max(header.version for header in recent)
        raise ActorFailed(
            f"no progress: {len(dropped)} rollouts in a row were too old. The latest ones are "
            f"from actors {actors}, which use weights of update {newest} or earlier and no longer "
            f"fetch new ones. The learner is at update {self._updates} and accepts rollouts that "
            f"are at most {oldest} updates old"
        )

    def _note_drift(self, batch: Batch) -> None:
        """Report to the batch's actors how far the learner's policy has diverged from theirs.

        The divergence of a rollout is the mean over its valid steps.
        """
        width, log_ratio = self._config.envs_per_actor, self._learner.log_ratio(batch)
        each = (x.cpu().split(width, dim=1) for x in (log_ratio, batch.valid))
        for slot, part, valid in zip(self.taken, *each, strict=True):
            log_ratios = part[valid]
            if len(log_ratios) and not log_ratios.isnan().any():
                nats = divergence(log_ratios)
                self._source.note(slot, nats)
                self._meter.divergence(nats)

    def close(self) -> None:
        """Stop prefetching; slots are no longer read afterwards."""
        if self._ahead is not None:
            self._ahead.close()

    def release(self) -> None:
        """Return the slots of the latest batch to their actors."""
        self._source.release(self.taken)
        self.taken = []

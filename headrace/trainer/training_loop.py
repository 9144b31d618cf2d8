"""Runs a learner's updates; saves, evaluates and reports between them.

actors ──► queue ──► fresh() ──► learner.update ──► all-reduce ──► publish ──► release
                      │ counts, drops stale rollouts  ╲ metrics, with other learners
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.actors.rollout_source import RolloutSource, RunStopped
from headrace.config import Config
from headrace.distributed.preemption import Preemption
from headrace.errors import StacksChanged
from headrace.evaluating.evaluations import Evaluations
from headrace.evaluating.evaluator import Evaluator
from headrace.learner.metrics import mean_metrics
from headrace.rundir.directories import reserve
from headrace.rundir.league_run import member
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.result import Result
from headrace.rundir.run_progress import Progress
from headrace.trainer.batch_collector import BatchCollector
from headrace.trainer.checkpoint_state import CheckpointState
from headrace.trainer.checkpointing import Checkpointer
from headrace.trainer.env_changes import EnvChanges
from headrace.trainer.hyperparameter_changes import HyperparameterChanges
from headrace.trainer.hyperparameters import CurrentHyperparameters, limited
from headrace.trainer.learner_actors import LearnerActors
from headrace.trainer.memory_check import (
    check_files,
    check_network,
    check_processes,
    check_room,
    check_shared_room,
)
from headrace.trainer.metrics_allreduce import (
    CHECK_EVERY,
    GroupState,
    MetricsAllReduce,
    checksum,
)
from headrace.trainer.result_writer import ResultWriter
from headrace.trainer.start import begin, built, large_network
from headrace.types import Group


class TrainingLoop:
    """Builds the parts of one learner, and trains until the run ends.

    Attributes:
        config: settings of the run; changes of hyperparameters and frame stacks replace it.
        stopped: stop after the current update. Any thread may set it.
        interrupted: also don't wait for evaluations.
        ended: the run has ended, with its last checkpoint.

    Args:
        config, started, notify, group, locks: see Trainer.

    Raises:
        ConfigError, CheckpointError: see Trainer.
    """

    def __init__(
        self,
        config: Config,
        started: float,
        notify: Callable[[str], None],
        group: Group,
        locks: bool,
    ) -> None:
        self._group, self._notify = group, notify
        leads = config.cluster is None or group.rank == 0  # others on a cluster probe in-process
        processes = config.transport == "shm" and leads
        chose_stacks = config.stacked_frames == "auto"
        config, probe, self.run_dir = begin(config, processes, group, notify, not locks)
        check_network(config, probe.observation_space)
        config, self.policy, self.learner = built(config, probe, group, notify)
        check_files(config)
        check_processes(config)
        check_room(config, self.policy, probe.env)
        check_shared_room(config, self.policy, probe.env)
        if config.run_dir is None:
            reserved = str(reserve(self.run_dir)) if group.rank == 0 else None
            self.run_dir = Path(str(group.broadcast(reserved)))
        self.config, self.env = config, probe.env
        self.current = CurrentHyperparameters(config.algo)
        self.changes = HyperparameterChanges(self.current, group, self._changed)
        if group.rank == 0 and (
            hint := large_network(config, self.policy, is_game=bool(probe.agents))
        ):
            notify(hint)
        self.progress = Progress()
        self.env_changes = EnvChanges(group, self.progress)
        self._metrics_group = MetricsAllReduce(group)
        learned = group, self.policy, self.progress
        self.writer = ResultWriter(config, self.run_dir, probe, learned, started, notify)
        self.stopped = self.interrupted = self.ended = False
        self.evaluator = Evaluator(config, self.env, notify, lambda: self.progress.env_changes)
        parts = config, self.run_dir, group, self.evaluator, notify
        self.evaluations = Evaluations(*parts, lambda: self.interrupted)
        self._restarts = 0
        self._league = member(config, self.run_dir, probe, *learned, notify)
        saved = CheckpointState(
            self.policy, self.learner, self.progress, self.writer.episodes, self._league
        )
        self.archive = Checkpointer(self.run_dir, config, probe, group, saved, notify, locks)
        seating = self._league and self._league.begin(self.archive.description)
        trained = self.policy, self.learner, self.progress
        self.actors = LearnerActors(config, probe, group, trained, chose_stacks, seating, notify)
        self._steps_before = self.progress.env_steps

    def close(self) -> None:
        """Stop the evaluator, the actors and the learner."""
        self.evaluator.close()
        self.actors.close()
        self.learner.close()

    def results(self) -> Iterator[Result]:
        """Train, and yield a result about every second on rank 0."""
        with contextlib.ExitStack() as stack:
            pending_changes = self.env_changes.take()
            source = self.actors.start(self.rates)
            preempting = (self._group, self.config.preempt_fraction, self.actors.cut)
            preemption = stack.enter_context(contextlib.closing(Preemption(*preempting)))
            self.writer.open_log(self.config, self.policy, stack)
            log = self.writer.log
            self.env_changes.write(pending_changes, log)
            collector = self._new_collector(source, preemption)
            stack.callback(lambda: collector.close())  # of the current one, which may be replaced
            mean, full = self.writer.begin()
            finished = self.stopped or self._enough(mean, full)
            while not finished:
                try:
                    agreed = self._update(source, collector)
                except StacksChanged as change:
                    source = self._hold_whole_stacks(change)
                    collector.close()
                    collector = self._new_collector(source, preemption)
                    continue
                finished = agreed is None or agreed.stop
                if agreed is not None:
                    with self._metrics_group.untimed():
                        finished = finished or self._enough(agreed.mean_return, agreed.full)
                        finished = self._after_update(finished, agreed.save)
                    with self._metrics_group.timed(), self._group.clock.phase("publish"):
                        self.actors.publish()
                        collector.release()
                if finished or (agreed is not None and agreed.due):
                    with self._metrics_group.untimed():
                        source.kill_hung()
                        result = self._result() if self.writer.tally.has_news else None
                        if result is not None:
                            yield result
                        finished = self.changes.agree(self.stopped) or finished
                        self.env_changes.make(source, log)
            source.close()  # from here on nothing trains
            if self.progress.updates:
                self.archive.save(final=True)
            self.evaluations.end(self.policy, self.progress, log)
            self.ended = True

    def _new_collector(self, source: RolloutSource, preemption: Preemption) -> BatchCollector:
        about = self.actors.share, source, self.writer.episodes, self.learner, preemption
        return BatchCollector(*about, reported=self.writer.custom, early=self.writer.early)

    def _hold_whole_stacks(self, change: StacksChanged) -> RolloutSource:
        self.config = self.actors.hold_whole_stacks(self.config, change, self.rates)
        self.archive.description["config"]["stacked_frames"] = self.config.stacked_frames
        assert self.actors.source is not None
        return self.actors.source

    def _enough(self, mean: float | None, full: bool) -> bool:
        """Return True at ``total_steps``, ``stop_time_s`` or ``stop_return``.

        The last one needs a full episode window, and an evaluation that confirms it.
        """
        total, log = self.config.total_steps, self.writer.log
        steps = self.progress.env_steps
        if steps >= self.progress.steps_at_end(self.config):
            limit = self.config.stop_time_s
            if limit is not None and log is not None:
                line = f"reached stop_time_s={limit:g} after {steps:,} of {total:,} steps"
                if steps >= total:
                    line = f"reached total_steps={total:,} before stop_time_s={limit:g}"
                self._notify(line)
            return True
        target = self.config.stop_return
        reached = target is not None and full and mean is not None and mean >= target
        return reached and self.evaluations.confirm_stop(self.policy, self.progress, log)

    def _update(self, source: RolloutSource, collector: BatchCollector) -> GroupState | None:
        """Run an update and return the group's state; None if stopped while waiting."""
        meter, progress = MetricAccumulator(), self.progress
        collector.begin(meter, progress.updates, self._may_leave)
        try:
            with self._metrics_group.timed(), self._group.clock.phase("learn"):
                updating = self.actors.shared or self.learner
                metrics = updating.update(collector.fresh, *self.rates)
                meter.note(**metrics)
                meter.count(**self.learner.take_lags(), lost=source.lost())
                own = mean_metrics(self.learner.own) or meter.means()
        except RunStopped:
            return None
        compare = self._group.size > 1 and progress.updates % CHECK_EVERY == 0
        state = self._metrics_group.all_reduce(
            meter,
            self.writer.episodes,
            own,
            stop=self.stopped,
            due=self.writer.tally.is_due(
                self.config.log_interval_s, meter.env_steps * self._group.size
            ),
            save=self.archive.is_due(),
            restarts=source.num_restarts,
            trained_s=progress.now(),
            checksum=checksum(self.policy) if compare else None,
        )
        self._restarts, progress.agreed_s = state.restarts, state.trained_s
        limit = self.config.algo.kl_limit
        progress.lr_factor = limited(progress.lr_factor, state.approx_kl, limit)
        progress.add(state.meter)
        self.writer.tally.add(state.meter)
        return state

    def _may_leave(self) -> bool:
        """Return True to stop in the middle of an update, unless other learners wait for it."""
        return self.stopped and self._group.size == 1

    @property
    def rates(self) -> tuple[float, dict[str, float]]:
        """The learning rate of the next update, and other changing hyperparameters by name."""
        steps = self.progress.env_steps, self.progress.steps_at_end(self.config)
        rate, values = self.current.rates(*steps)
        return rate * self.progress.lr_factor, values

    def _changed(self, name: str, before: Any) -> None:
        """Record and report that a hyperparameter changes with the next update."""
        self.config = replace(self.config, algo=self.current.algo)
        self.archive.describe(self.config)
        if self._group.rank == 0:
            now = getattr(self.config.algo, name)
            self._notify(f"{name} {before} → {now} after {self.progress.env_steps:,} steps")

    def _after_update(self, finished: bool, save: bool) -> bool:
        """Save and evaluate if due; returns True if the run has ended.

        Args:
            save: it is time for a checkpoint.
        """
        seconds, log = self.progress.now(), self.writer.log
        self.writer.end_update(self._metrics_group, seconds)
        if self._league is not None:
            self._league.after_update()
        if (save or self._crossed(self.config.checkpoint_interval)) and not finished:
            if log is not None:
                log.flush()  # rows reach the disk before the checkpoint that includes them
            self.archive.save()
        if self.config.evaluates_while_training:
            crossed = self._crossed(self.config.eval_interval or 1)
            self.evaluations.after_update(self.policy, self.progress, seconds, crossed, log)
        self._steps_before = self.progress.env_steps
        return finished or self.evaluations.target_is_reached

    def _crossed(self, interval: int) -> bool:
        return self.progress.env_steps // interval > self._steps_before // interval

    def _result(self) -> Result | None:
        about = self._restarts, self.evaluations, self._league
        return self.writer.result(self.rates, *about)

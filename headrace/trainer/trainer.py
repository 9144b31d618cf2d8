"""Runs one learner of a run and its actors; wires all parts together.

actors ──► queue ──► fresh() ──► learner.update ──► all-reduce ──► publish ──► release
                      │ counts, drops stale rollouts  ╲ metrics, with other learners
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from headrace.actors.rollout_source import RolloutSource, RunStopped
from headrace.config import Config
from headrace.distributed.preemption import Preemption
from headrace.envs import changes
from headrace.errors import (
    ConfigError,
    HeadraceError,
    StacksChanged,
    require,
    resume_command,
)
from headrace.evaluating.evaluations import Evaluations
from headrace.evaluating.evaluator import Evaluator
from headrace.evaluating.run_end import finish
from headrace.learner.metrics import mean_metrics
from headrace.processes import (
    OwnGenerators,
    keep_freed_memory,
    library_defaults,
    pinned,
    resumed_in,
    stop_signals,
    torch_threads,
)
from headrace.processes.output import output_best_effort, print_line
from headrace.rundir import checkpoint_writer
from headrace.rundir.league_run import member
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.result import Result
from headrace.rundir.run_progress import Progress
from headrace.trainer.batch_collector import BatchCollector
from headrace.trainer.checkpointing import Checkpointer, CheckpointState
from headrace.trainer.env_changes import EnvChanges
from headrace.trainer.hyperparameter_changes import HyperparameterChanges
from headrace.trainer.hyperparameters import CurrentHyperparameters, limited
from headrace.trainer.learner_actors import LearnerActors
from headrace.trainer.memory_check import check_files, check_network, check_room, check_shared_room
from headrace.trainer.metrics_allreduce import (
    CHECK_EVERY,
    GroupState,
    MetricsAllReduce,
    checksum,
)
from headrace.trainer.result_writer import ResultWriter
from headrace.trainer.start import begin, built, large_network
from headrace.types import Group, SingleLearner
from headrace.validation.fields import checked


class Trainer:
    """Trains a run: iterate over it to receive a ``Result`` about every second.

    When the loop stops, by an error, a signal or ``break``, updates since the latest checkpoint are
    saved. Non-finite weights are never saved, and with several learners an error saves nothing.
    Inside ``with``, a loop that completes is followed by :meth:`finish`.

    With ``eval_interval``, evaluations run concurrently with training. Training waits for each of
    them with ``deterministic``, ``target_return`` or ``transport="serial"``, and always for the
    last one. The checkpoint with the greatest mean return so far is ``best``.

    Args:
        config: settings of the run.
        started: start time of the run (``time.monotonic()``); None: now.
        notify: called with a line of text for the user.
        group: group of the run's learners; None: a single learner. Only rank 0 writes files and
            yields results, but every rank must be iterated.
        handle_signals: stop training at Ctrl-C, SIGTERM and SIGHUP, in the main thread; a second
            Ctrl-C or SIGHUP interrupts.
        locks: hold the run directory's lock; False if the parent process holds it.

    Raises:
        ConfigError: an environment, space or setting is invalid.
        CheckpointError: the run directory exists, or the run can't be resumed.
    """

    @checked
    def __init__(
        self,
        config: Config,
        started: float | None = None,
        notify: Callable[[str], None] = print_line,
        group: Group | None = None,
        handle_signals: bool = True,
        locks: bool = True,
    ) -> None:
        self.group = SingleLearner() if group is None else group
        self._notify, self._handle_signals = notify, handle_signals
        if config.num_learners != self.group.size:
            raise ConfigError(
                f"num_learners={config.num_learners} needs as many processes: use hr.train, "
                "hr.LearnerGroup, the command line or torchrun (a Trainer is one learner)"
            )
        started = time.monotonic() if started is None else started
        self._serial = config.transport == "serial" and config.cluster is None
        self._generators = OwnGenerators()
        with self._own_state():
            self._build(config, started, notify, locks)

    def _build(
        self, config: Config, started: float, notify: Callable[[str], None], locks: bool
    ) -> None:
        leads = (
            config.cluster is None or self.group.rank == 0
        )  # elsewhere only actors have processes
        processes = config.transport == "shm" and leads
        chose_stacks = config.stacked_frames == "auto"
        config, probe, self.run_dir = begin(config, processes, self.group, notify, not locks)
        check_network(config, probe.observation_space)
        config, self.policy, self.learner = built(config, probe, self.group, notify)
        check_files(config)
        check_room(config, self.policy, probe.env)
        check_shared_room(config, self.policy, probe.env)
        self.config, self.env = config, probe.env
        self._current = CurrentHyperparameters(config.algo)
        self._changes = HyperparameterChanges(self._current, self.group, self._changed)
        if self.group.rank == 0 and (
            hint := large_network(config, self.policy, is_game=bool(probe.agents))
        ):
            notify(hint)
        self.progress = Progress()
        self._env_changes = EnvChanges(self.group, self.progress)
        self._metrics_group = MetricsAllReduce(self.group)
        learned = self.group, self.policy, self.progress
        self._writer = ResultWriter(config, self.run_dir, probe, learned, started, notify)
        self.episodes = self._writer.episodes
        self._stopped = self.interrupted = False
        self._evaluator = Evaluator(config, self.env, notify, lambda: self.progress.env_changes)
        parts = config, self.run_dir, self.group, self._evaluator, notify
        self._evaluations = Evaluations(*parts, lambda: self.interrupted)
        self._restarts = 0
        self._summary: dict[str, Any] | None = None
        self._league = member(config, self.run_dir, probe, *learned, notify)
        saved = CheckpointState(
            self.policy, self.learner, self.progress, self.episodes, self._league
        )
        self._archive = Checkpointer(self.run_dir, config, probe, self.group, saved, notify, locks)
        seating = self._league and self._league.begin(self._archive.description)
        trained = self.policy, self.learner, self.progress
        self._actors = LearnerActors(
            config, probe, self.group, trained, chose_stacks, seating, notify
        )
        self._steps_before = self.env_steps
        self._inside = self._ended = False  # inside ``with``; the loop has ended
        self._closed = False

    @contextlib.contextmanager
    def _own_state(self) -> Iterator[None]:
        """Set up process-wide state for the run inside the block, then restore the caller's."""
        generators = self._generators.in_use() if self._serial else contextlib.nullcontext()
        with library_defaults(), output_best_effort(), generators:
            yield

    @property
    def env_steps(self) -> int:
        """Environment steps that all learners have trained on."""
        return self.progress.env_steps

    @property
    def updates(self) -> int:
        """Number of updates so far."""
        return self.progress.updates

    @property
    def source(self) -> RolloutSource | None:
        """Rollouts of the actors; None before training starts."""
        return self._actors.source

    # -- starting and stopping ------------------------------------------------------------------

    def stop(self) -> None:
        """Stop training after the current update; a checkpoint is written."""
        self._stopped = True

    def interrupt(self) -> None:
        """Stop like :meth:`stop`, without waiting for evaluations."""
        self.interrupted = self._stopped = True

    def close(self) -> None:
        """Stop all processes and threads and release the run directory; safe to call twice."""
        self._closed = True
        self._stop_work()
        self._archive.close()

    def _stop_work(self) -> None:
        self._evaluator.close()
        self._actors.close()
        self.learner.close()

    def _save_rest(self, kind: object, error: BaseException | None, _: object) -> None:
        self._env_changes.drop_failed(error)
        if not self._ended:
            self._archive.save_rest(error)

    def __enter__(self) -> Trainer:
        self._inside = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            self._save_rest(kind, error, _)
            if error is None and self._ended:
                self.finish()
        finally:
            self.close()

    # -- the loop -------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Result]:
        if self._closed:
            raise HeadraceError(
                f"this Trainer is closed: continue its run with {resume_command(self.run_dir)}"
            )
        return resumed_in(self._own_state, self._results())

    def _results(self) -> Iterator[Result]:
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch_threads(1))
            stack.enter_context(pinned(self.config.cores_per_learner, self.group.local_rank))
            if self._handle_signals:
                stack.enter_context(stop_signals(self.interrupt))
            stack.callback(self._stop_work if self._inside else self.close)
            stack.push(self._save_rest)
            keep_freed_memory()
            pending_changes = self._env_changes.take()
            source = self._actors.start(self._rates)
            preempting = (self.group, self.config.preempt_fraction, self._actors.cut)
            preemption = stack.enter_context(contextlib.closing(Preemption(*preempting)))
            self._writer.open_log(self.config, self.policy, stack)
            log = self._writer.log
            self._env_changes.write(pending_changes, log)
            collector = self._new_collector(source, preemption)
            stack.callback(lambda: collector.close())  # the current one, it may be replaced
            mean, full = self._writer.begin()
            finished = self._stopped or self._enough(mean, full)
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
                    with self._metrics_group.timed(), self.group.clock.phase("publish"):
                        self._actors.publish()
                        collector.release()
                if finished or (agreed is not None and agreed.due):
                    with self._metrics_group.untimed():
                        source.kill_hung()
                        result = self._result() if self._writer.tally.has_news else None
                        if result is not None:
                            yield result
                        finished = self._changes.agree(self._stopped) or finished
                        self._env_changes.make(source, log)
            source.close()  # from here on nothing trains
            if self.updates:
                self._archive.save(final=True)
            self._evaluations.end(self.policy, self.progress, log)
            self._ended = True

    def _new_collector(self, source: RolloutSource, preemption: Preemption) -> BatchCollector:
        about = self._actors.share, source, self.episodes, self.learner, preemption
        return BatchCollector(*about, reported=self._writer.custom, early=self._writer.early)

    def _hold_whole_stacks(self, change: StacksChanged) -> RolloutSource:
        self.config = self._actors.hold_whole_stacks(self.config, change, self._rates)
        self._archive.description["config"]["stacked_frames"] = self.config.stacked_frames
        assert self.source is not None
        return self.source

    def _enough(self, mean: float | None, full: bool) -> bool:
        """Return True at ``total_steps``, ``stop_time_s`` or ``stop_return``.

        The latter is reached by a full episode window, and an evaluation must confirm it.
        """
        total, log = self.config.total_steps, self._writer.log
        if self.env_steps >= self.progress.steps_at_end(self.config):
            limit = self.config.stop_time_s
            if limit is not None and log is not None:
                line = f"reached stop_time_s={limit:g} after {self.env_steps:,} of {total:,} steps"
                if self.env_steps >= total:
                    line = f"reached total_steps={total:,} before stop_time_s={limit:g}"
                self._notify(line)
            return True
        target = self.config.stop_return
        reached = target is not None and full and mean is not None and mean >= target
        return reached and self._evaluations.confirm_stop(self.policy, self.progress, log)

    def _update(self, source: RolloutSource, collector: BatchCollector) -> GroupState | None:
        """Run an update and return the group's state; None if stopped while waiting."""
        meter = MetricAccumulator()
        collector.begin(meter, self.updates, self._may_leave)
        try:
            with self._metrics_group.timed(), self.group.clock.phase("learn"):
                updating = self._actors.shared or self.learner
                metrics = updating.update(collector.fresh, *self._rates)
                meter.note(**metrics)
                meter.count(**self.learner.take_lags(), lost=source.lost())
                own = mean_metrics(self.learner.own) or meter.means()
        except RunStopped:
            return None
        compare = self.group.size > 1 and self.updates % CHECK_EVERY == 0
        state = self._metrics_group.all_reduce(
            meter,
            self.episodes,
            own,
            stop=self._stopped,
            due=self._writer.tally.is_due(
                self.config.log_interval_s, meter.env_steps * self.group.size
            ),
            save=self._archive.is_due(),
            restarts=source.num_restarts,
            trained_s=self.progress.now(),
            checksum=checksum(self.policy) if compare else None,
        )
        self._restarts, progress = state.restarts, self.progress
        progress.agreed_s = state.trained_s
        limit = self.config.algo.kl_limit
        progress.lr_factor = limited(progress.lr_factor, state.approx_kl, limit)
        self.progress.add(state.meter)
        self._writer.tally.add(state.meter)
        return state

    def _may_leave(self) -> bool:
        """Return True to stop in the middle of an update, unless other learners wait for it."""
        return self._stopped and self.group.size == 1

    @property
    def _rates(self) -> tuple[float, dict[str, float]]:
        """The learning rate of the next update, and other changing hyperparameters by name."""
        steps = self.env_steps, self.progress.steps_at_end(self.config)
        rate, values = self._current.rates(*steps)
        return rate * self.progress.lr_factor, values

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Current values of all float hyperparameters, by name, without the effect of kl_limit."""
        return self._current.all(self.env_steps, self.progress.steps_at_end(self.config))

    def set_hyperparameter(self, name: str, value: Any) -> None:
        """Change a float hyperparameter from the next update on, in place of its schedule.

        Checkpoints save the change, so that a resumed run continues with it. Several learners apply
        it in the same update.

        Args:
            name: name of the hyperparameter, such as ``learning_rate``.
            value: a number, or a schedule, see :mod:`headrace.schedules`.

        Raises:
            ConfigError: it isn't a float hyperparameter, or the value is out of range.
        """
        self._changes.request(name, value)

    def _changed(self, name: str, before: Any) -> None:
        """Note that a hyperparameter has another value from the next update on."""
        self.config = replace(self.config, algo=self._current.algo)
        self._archive.describe(self.config)
        if self.group.rank == 0:
            now = getattr(self.config.algo, name)
            self._notify(f"{name} {before} → {now} after {self.env_steps:,} steps")

    # -- results and checkpoints ----------------------------------------------------------------

    def _after_update(self, finished: bool, save: bool) -> bool:
        """Save and evaluate if due; returns True if the run has ended.

        Args:
            save: it is time for a checkpoint.
        """
        seconds, log = self.progress.now(), self._writer.log
        self._writer.end_update(self._metrics_group, seconds)
        if self._league is not None:
            self._league.after_update()
        if (save or self._crossed(self.config.checkpoint_interval)) and not finished:
            if log is not None:
                log.flush()  # rows reach the disk before the checkpoint that includes them
            self._archive.save()
        if self.config.evaluates_while_training:
            crossed = self._crossed(self.config.eval_interval or 1)
            self._evaluations.after_update(self.policy, self.progress, seconds, crossed, log)
        self._steps_before = self.env_steps
        return finished or self._evaluations.target_is_reached

    def _crossed(self, interval: int) -> bool:
        return self.env_steps // interval > self._steps_before // interval

    def _result(self) -> Result | None:
        about = self._restarts, self._evaluations, self._league
        return self._writer.result(self._rates, *about)

    def call_envs(
        self,
        method: str,
        *args: Any,
        evaluation: bool = False,
        training: bool = True,
        **kwargs: Any,
    ) -> None:
        """Call a method of every environment, for example to make a task harder.

        Actors make the calls before the next rollout that they begin, in order. The run saves them:
        replaced actors and resumed runs make them again before their first step.

        Args:
            args, kwargs: JSON values; tuples arrive as lists.
            evaluation: also call it in the environments of later evaluations.
            training: False: don't call it in training environments.

        Raises:
            ConfigError: an argument is not a JSON value, or the method name is not allowed.

        The run fails if an environment doesn't have the method, or raises.
        """
        change = changes.call(method, args, kwargs, evaluation, training)
        self._env_changes.request(change.to_json())

    def set_env_attr(
        self, name: str, value: Any, *, evaluation: bool = False, training: bool = True
    ) -> None:
        """Set an existing attribute of every environment; otherwise like :meth:`call_envs`."""
        self._env_changes.request(changes.assign(name, value, evaluation, training).to_json())

    def change_envs(self, change: str) -> None:
        """Adopt a change made by another process of this run, unless it was adopted already."""
        self._env_changes.request(change)

    def log(self, name: str, value: float) -> None:
        """Report a number as the metric ``custom/<name>`` with the next result.

        Several values before that result are averaged. Values logged after the last result appear
        in ``summary.json`` only. NaN and infinity are left out and counted in
        ``custom/not_finite``.

        Raises:
            ConfigError: the name has characters other than letters, digits and ``_-./``, or the
                value isn't one number.
        """
        self._writer.custom.log(name, value)

    def save(self, path: str | Path | None = None) -> Path:
        """Write a checkpoint between two results, and return its path.

        Args:
            path: also save the policy alone in this folder, replacing one saved there before, and
                return the folder. ``hr.load`` reads it, and the setting ``init_from`` starts
                another run from it. The run itself resumes from its run directory.

        Raises:
            ConfigError: there are several learners, which have to save together, or checkpoints
            reset environments between updates (``deterministic``).
            CheckpointError: the checkpoint can't be written, or the path contains something else.
            NonFinite: a weight isn't finite; nothing was written.
        """
        if self.group.size > 1:
            raise ConfigError(
                f"save() needs num_learners=1, not {self.group.size}: several learners save "
                "together, every checkpoint_interval steps or checkpoint_interval_s seconds and at "
                "the end"
            )
        valid = "False for save(): with it, checkpoints fall on checkpoint_interval"
        require(not self.config.deterministic, "deterministic", True, valid)
        saved = self._archive.save(final=True)
        if path is None:
            return saved
        return checkpoint_writer.export(self._archive.description, self.policy, Path(path))

    def finish(self, draw: bool = True) -> dict[str, Any]:
        """Evaluate, write ``summary.json`` and, to draw, ``curve.png`` and ``report.html``, once.

        Returns:
            contents of ``summary.json``; empty on ranks other than 0.
        """
        if self._summary is None and self.group.rank == 0:
            interrupt = self.interrupt if self._handle_signals else None
            with self._own_state():
                self._summary = finish(self, self._evaluator, self._notify, interrupt, draw)
        return self._summary or {}

    @property
    def sps(self) -> float:
        """Environment steps per second from the first update to the latest result."""
        return self._writer.tally.sps

    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        return self._writer.summary()

"""Runs one learner of a run and its actors; wires all parts together.

actors ──► queue ──► fresh() ──► learner.update ──► all-reduce ──► publish ──► release
                      │ counts, drops stale rollouts  ╲ metrics, with other learners
"""

from __future__ import annotations

import contextlib
import copy
import json
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import torch

from headrace.actors.rollout_source import RolloutSource, RunStopped
from headrace.config import Config
from headrace.distributed.preemption import Preemption
from headrace.envs import changes, info_metrics
from headrace.envs.changes import EnvChange
from headrace.errors import (
    ChangeFailed,
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
    cores,
    keep_freed_memory,
    library_defaults,
    pinned,
    resumed_in,
    return_freed_memory,
    stop_signals,
    torch_threads,
)
from headrace.processes.output import output_best_effort, print_line
from headrace.rundir import checkpoint
from headrace.rundir.custom_metrics import CustomMetrics
from headrace.rundir.early_returns import EarlyReturns
from headrace.rundir.episodes import gather_episodes, own_episodes
from headrace.rundir.files import RunLog
from headrace.rundir.health import doctor_of
from headrace.rundir.league_run import league_metrics, member
from headrace.rundir.metric_accumulators import MetricAccumulator
from headrace.rundir.result import Result
from headrace.rundir.run_progress import Progress, RunProgress
from headrace.trainer.batch_collector import BatchCollector
from headrace.trainer.checkpointing import Checkpointer, CheckpointState
from headrace.trainer.hyperparameters import CurrentHyperparameters, limited
from headrace.trainer.memory_check import check_files, check_network, check_room, check_shared_room
from headrace.trainer.metrics_allreduce import (
    CHECK_EVERY,
    GroupState,
    MetricsAllReduce,
    checksum,
    logs_iterations,
)
from headrace.trainer.start import begin, built, large_network, shared_model
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
        self.config, self.env, self.agents = config, probe.env, probe.agents
        self._share = config.per_learner
        self._current = CurrentHyperparameters(config.algo, config.total_steps)
        self._to_set: list[tuple[str, Any]] = []  # hyperparameters for all learners
        if self.group.rank == 0 and (
            hint := large_network(config, self.policy, is_game=bool(probe.agents))
        ):
            notify(hint)
        self._shared = shared_model(config, self.learner)
        self.progress = Progress()
        reported_agents = () if config.mixture is not None else probe.agents
        self.episodes = own_episodes(config.num_learners, probe.env, reported_agents)
        self._early_returns = EarlyReturns()
        self._reported = CustomMetrics(info_metrics.written(config.info_metrics), notify)
        self._changes = deque[str]()  # other threads append to it and to reported metrics
        self._metrics_group = MetricsAllReduce(self.group)
        weights = self.policy.state_dict().values()
        copied = 0 if config.inference == "shared" else sum(x.nbytes for x in weights)
        counting = probe.frames_per_step, probe.in_turns
        self._tally = RunProgress(self.progress, config, copied, started, *counting)
        self.source: RolloutSource | None = None
        self._stopped = self.interrupted = False
        self._evaluator = Evaluator(config, self.env, notify, lambda: self.progress.env_changes)
        parts = config, self.run_dir, self.group, self._evaluator, notify
        self._evaluations = Evaluations(*parts, lambda: self.interrupted)
        self._restarts = 0
        self._summary: dict[str, Any] | None = None
        about = self.group, self.policy, self.progress, notify
        self._league = member(config, self.run_dir, probe, *about)
        saved = CheckpointState(
            self.policy, self.learner, self.progress, self.episodes, self._league
        )
        self._archive = Checkpointer(self.run_dir, config, probe, self.group, saved, notify, locks)
        self._seating = self._league and self._league.begin(self._archive.description)
        self._steps_before = self.env_steps
        self._inside = self._ended = False  # inside ``with``; the loop has ended
        self._closed = False
        self._chose_stacks = chose_stacks and config.stacked_frames == "once"

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
        if self.source is not None:
            self.source.close()
        self.learner.close()

    def _save_rest(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, ChangeFailed):  # a resumed run would fail again
            made = self.progress.env_changes
            made[:] = [x for x in made if EnvChange.from_json(x).id != error.change]
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
            pending_changes = self._take_changes()
            source = self.source = self._open_source()
            preempting = (self.group, self.config.preempt_fraction, self._cut)
            preemption = stack.enter_context(contextlib.closing(Preemption(*preempting)))
            log = self._open_log(stack)
            self._log_changes(pending_changes, log)
            collector = self._new_collector(source, preemption)
            stack.callback(lambda: collector.close())  # the current one, it may be replaced
            episodes = gather_episodes(self.group, self.episodes)
            self._tally.begin(episodes)
            counters = self.updates, self.env_steps, self.progress.trained_s
            self._early_returns.begin(episodes, *counters)
            self.progress.start()
            finished = self._stopped or self._enough(episodes.mean_return, episodes.full, log)
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
                        finished = finished or self._enough(agreed.mean_return, agreed.full, log)
                        finished = self._after_update(finished, agreed.save, log)
                    with self._metrics_group.timed(), self.group.clock.phase("publish"):
                        self._publish(source)
                        collector.release()
                if finished or (agreed is not None and agreed.due):
                    with self._metrics_group.untimed():
                        source.kill_hung()
                        result = self._report(log) if self._tally.has_news else None
                        if result is not None:
                            yield result
                        finished = self._agree() or finished
                        self._make_changes(source, log)
            source.close()  # from here on nothing trains
            if self.updates:
                self._archive.save(final=True)
            self._evaluations.end(self.policy, self.progress, log)
            self._ended = True

    def _cut(self, version: int) -> None:
        if self.source is not None:
            self.source.cut(version)

    def _new_collector(self, source: RolloutSource, preemption: Preemption) -> BatchCollector:
        about = self._share, source, self.episodes, self.learner, preemption
        return BatchCollector(*about, reported=self._reported, early=self._early_returns)

    def _hold_whole_stacks(self, change: StacksChanged) -> RolloutSource:
        """Restart the actors with memory for whole frame stacks, if ``stacked_frames`` is "auto".

        Waiting rollouts are discarded, and the current update starts again before any training step
        of it was taken. Each learner does this independently.

        Raises:
            StacksChanged: the setting isn't "auto", a replay buffer holds frames, or actors train.
        """
        algo = self.config.algo
        replays = getattr(algo, "replay_fraction", 0.0) > 0 or hasattr(algo, "buffer_size")
        holds = algo.learns_in_actors or replays
        if not self._chose_stacks or holds or self.config.stacked_frames == "whole":
            raise change
        assert self.source is not None
        self.source.close()
        self.config = replace(self.config, stacked_frames="whole")
        self._share = self.config.per_learner
        check_room(self.config, self.policy, self.env)
        self._archive.description["config"]["stacked_frames"] = "whole"
        self.progress.epoch += 1  # other seeds of environments
        reason = str(change).partition(" (environment")[0]
        self._notify(f"auto: {reason}; actors restart and store whole stacks from now on")
        self.source = self._open_source(together=False)
        return self.source

    def _open_source(self, together: bool = True) -> RolloutSource:
        spec = self._share.actor_spec(
            self.env,
            copy.deepcopy(self.policy).cpu(),  # an actor needs no accelerator
            device=str(self.learner.device),
            first_actor=self.group.rank * self._share.num_actors,
            rank=self.group.rank,
            agents=self.agents,
            num_places=None if self.config.cluster is None else self.config.num_places,
            may_be_cut=self.config.preempt_fraction is not None,
            processors=None if self.config.cores_per_learner is None else frozenset(cores()),
            seating=self._seating,
        )
        model = None if self._shared is None else self._shared.opened(*self._rates)
        if together:
            with self.group.clock.aside():  # no rank allocates before all have read the free memory
                self.group.gather(torch.zeros(1))
        source = RolloutSource(spec, self._notify, model)
        self._order(source, self.progress.env_changes)
        self._publish(source)
        return_freed_memory()  # of benchmarks and pickles
        return source

    def _publish(self, source: RolloutSource) -> None:
        self.learner.published(self.updates)
        source.publish(self.policy, self.updates, self.progress.epoch)

    def _open_log(self, stack: contextlib.ExitStack) -> RunLog | None:
        if self.group.rank > 0:
            return None
        setting = self.config.log_iterations
        logged = logs_iterations(self.group.size) if setting is None else setting
        resumed_at = (self.env_steps, self.updates) if self.config.resume else None
        doctor = doctor_of(self.config, self.policy, self._notify)
        log = RunLog(
            self.run_dir, self.group.size if logged else 0, resumed_at, self._notify, doctor
        )
        return stack.enter_context(contextlib.closing(log))

    def _enough(self, mean: float | None, full: bool, log: RunLog | None) -> bool:
        """Return True at ``total_steps``, or if a full episode window reaches ``stop_return``.

        An evaluation must confirm the latter.
        """
        if self.env_steps >= self.config.total_steps:
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
                updating = self._shared or self.learner
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
            due=self._tally.is_due(self.config.log_interval_s, meter.env_steps * self.group.size),
            save=self._archive.is_due(),
            restarts=source.num_restarts,
            checksum=checksum(self.policy) if compare else None,
        )
        self._restarts, progress = state.restarts, self.progress
        limit = self.config.algo.kl_limit
        progress.lr_factor = limited(progress.lr_factor, state.approx_kl, limit)
        self.progress.add(state.meter)
        self._tally.add(state.meter)
        return state

    def _may_leave(self) -> bool:
        """Return True to stop in the middle of an update, unless other learners wait for it."""
        return self._stopped and self.group.size == 1

    @property
    def _rates(self) -> tuple[float, dict[str, float]]:
        """The learning rate of the next update, and other changing hyperparameters by name."""
        rate, values = self._current.rates(self.env_steps)
        return rate * self.progress.lr_factor, values

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Current values of all float hyperparameters, by name, without the effect of kl_limit."""
        return self._current.all(self.env_steps)

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
        self._current.changed(name, value)
        if self.group.size > 1:
            self._to_set.append((name, value))
        else:
            self._set(name, value)

    def _set(self, name: str, value: Any) -> None:
        before = getattr(self.config.algo, name)
        self._current.set(name, value)
        self.config = replace(self.config, algo=self._current.algo)
        self._archive.describe(self.config)
        if self.group.rank == 0:
            now = getattr(self.config.algo, name)
            self._notify(f"{name} {before} → {now} after {self.env_steps:,} steps")

    def _agree(self) -> bool:
        """Apply rank 0's hyperparameter changes on all learners; returns whether one must stop."""
        pending = [float(self._stopped), float(len(self._to_set))]
        flags = self.group.gather(torch.tensor(pending))
        if self.group.size > 1 and flags[0, 1]:
            count = int(flags[0, 1])  # another thread may add to them
            changes = cloudpickle.dumps(self._to_set[:count]) if self.group.rank == 0 else b""
            del self._to_set[:count]
            for name, value in cloudpickle.loads(self.group.broadcast(changes)):
                self._set(name, value)
        return bool(flags[:, 0].any())

    # -- results and checkpoints ----------------------------------------------------------------

    def _after_update(self, finished: bool, save: bool, log: RunLog | None) -> bool:
        """Save and evaluate if due; returns True if the run has ended.

        Args:
            save: it is time for a checkpoint.
        """
        seconds = self.progress.now()
        self._early_returns.end_update(self.updates, self.env_steps, seconds)
        if log is not None:
            log.iteration(self._metrics_group.iterations(), self.updates, self.env_steps, seconds)
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

    def _report(self, log: RunLog | None) -> Result | None:
        """Return the result of all learners on rank 0; other ranks only take part."""
        episodes = gather_episodes(self.group, self.episodes)
        metrics = self._reported.gather(self.group)
        points = self._early_returns.points(self.group, episodes)
        if log is None:
            return None
        self._reported.report_missing(self.episodes.count)
        rate, values = self._rates
        metrics |= self._evaluations.metrics | {f"charts/{k}": v for k, v in values.items()}
        extra: dict[str, Any] = {"learning_rate": rate, "eval_return": self._evaluations.latest}
        extra |= league_metrics(self._league) | {"metrics": metrics}
        result = self._tally.result(episodes, restarts=self._restarts, **extra)
        log.returns(points)
        log.result(result)
        return result

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
        self._changes.append(changes.call(method, args, kwargs, evaluation, training).to_json())

    def set_env_attr(
        self, name: str, value: Any, *, evaluation: bool = False, training: bool = True
    ) -> None:
        """Set an existing attribute of every environment; otherwise like :meth:`call_envs`."""
        self._changes.append(changes.assign(name, value, evaluation, training).to_json())

    def change_envs(self, change: str) -> None:
        """Adopt a change made by another process of this run, unless it was adopted already."""
        self._changes.append(change)

    def _take_changes(self) -> list[str]:
        """Return the new changes of rank 0, and adopt them on every learner."""
        new: list[str] = []
        while self._changes:
            new.append(self._changes.popleft())
        if self.group.size > 1:
            some = self.group.gather(torch.tensor([float(len(new))]))
            new = self.group.broadcast(new) if some[0] else []
        if not new:
            return []
        made = {EnvChange.from_json(text).id for text in self.progress.env_changes}
        new = [text for text in new if EnvChange.from_json(text).id not in made]
        self.progress.env_changes += new
        return new

    def _make_changes(self, source: RolloutSource, log: RunLog | None) -> None:
        new = self._take_changes()
        self._order(source, new)
        self._log_changes(new, log)

    def _order(self, source: RolloutSource, made: list[str]) -> None:
        for text in made:
            if EnvChange.from_json(text).training:
                source.order(text)

    def _log_changes(self, made: list[str], log: RunLog | None) -> None:
        if log is not None:
            for text in made:
                log.env_change(EnvChange.from_json(text), self.env_steps, self.updates)

    def log(self, name: str, value: float) -> None:
        """Report a number as the metric ``custom/<name>`` with the next result.

        Several values before that result are averaged. Values logged after the last result appear
        in ``summary.json`` only. NaN and infinity are left out and counted in
        ``custom/not_finite``.

        Raises:
            ConfigError: the name has characters other than letters, digits and ``_-./``, or the
                value isn't one number.
        """
        self._reported.log(name, value)

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
        return checkpoint.export(self._archive.description, self.policy, Path(path))

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
        return self._tally.sps

    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        self._reported.gather(SingleLearner())  # values that callbacks logged last
        if self.group.rank == 0:
            self._reported.report_missing()
        made = [json.loads(text) for text in self.progress.env_changes]
        return self._tally.summary() | {"metrics": self._reported.latest, "env_changes": made}

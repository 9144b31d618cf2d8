"""Trains a run with one learner: starts, controls and finishes its training loop."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from headrace.actors.rollout_source import RolloutSource
from headrace.config import Config
from headrace.envs import changes
from headrace.errors import ConfigError, HeadraceError, require, resume_command
from headrace.evaluating.run_end import finish, report_interrupt
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
from headrace.rundir import checkpoint_writer, import_allowlist
from headrace.rundir.result import Result
from headrace.trainer.checkpointing import saves_together
from headrace.trainer.training_loop import TrainingLoop
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
            self._loop = TrainingLoop(config, started, notify, self.group, locks)
        self.env, self.run_dir = self._loop.env, self._loop.run_dir
        self.policy, self.learner = self._loop.policy, self._loop.learner
        self.progress, self.episodes = self._loop.progress, self._loop.writer.episodes
        self._summary: dict[str, Any] | None = None
        self._inside = self._closed = False  # inside ``with``

    @contextlib.contextmanager
    def _own_state(self) -> Iterator[None]:
        """Set up process-wide state for the run inside the block, then restore the caller's."""
        generators = self._generators.in_use() if self._serial else contextlib.nullcontext()
        with library_defaults(), output_best_effort(), generators:
            yield

    @property
    def config(self) -> Config:
        """Settings of the run, with its current hyperparameters."""
        return self._loop.config

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
        return self._loop.actors.source

    # -- starting and stopping ------------------------------------------------------------------

    def stop(self) -> None:
        """Stop training after the current update; a checkpoint is written."""
        self._loop.stopped = True

    def interrupt(self) -> None:
        """Stop like :meth:`stop`, without waiting for evaluations."""
        self._loop.interrupted = self._loop.stopped = True

    @property
    def interrupted(self) -> bool:
        """True after :meth:`interrupt`."""
        return self._loop.interrupted

    def close(self) -> None:
        """Stop all processes and threads and release the run directory; safe to call twice."""
        self._closed = True
        self._loop.close()
        self._loop.archive.close()

    def _save_rest(self, kind: object, error: BaseException | None, _: object) -> None:
        self._loop.env_changes.drop_failed(error)
        if not self._loop.ended:
            self._loop.archive.save_rest(error)

    def __enter__(self) -> Trainer:
        self._inside = True
        return self

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        try:
            self._save_rest(kind, error, _)
            if error is None and self._loop.ended:
                self.finish()
            if error is None:
                self._report_interrupt()
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
            stack.callback(self._loop.close if self._inside else self.close)
            stack.push(self._save_rest)
            keep_freed_memory()
            yield from self._loop.results()
        if not self._inside:  # otherwise __exit__ reports, after the evaluation
            self._report_interrupt()

    def _report_interrupt(self) -> None:
        if self._handle_signals and self.group.rank == 0:
            report_interrupt(self, self._notify)

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Current values of all float hyperparameters, by name, without the effect of kl_limit."""
        steps_at_end = self.progress.steps_at_end(self.config)
        return self._loop.current.all(self.env_steps, steps_at_end)

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
        self._loop.changes.request(name, value)

    # -- results and checkpoints ----------------------------------------------------------------

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
        self._loop.env_changes.request(change.to_json())

    def set_env_attr(
        self, name: str, value: Any, *, evaluation: bool = False, training: bool = True
    ) -> None:
        """Set an existing attribute of every environment; otherwise like :meth:`call_envs`."""
        self._loop.env_changes.request(changes.assign(name, value, evaluation, training).to_json())

    def change_envs(self, change: str) -> None:
        """Adopt a change made by another process of this run, unless it was adopted already."""
        self._loop.env_changes.request(change)

    def log(self, name: str, value: float) -> None:
        """Report a number as the metric ``custom/<name>`` with the next result.

        Several values before that result are averaged. Values logged after the last result appear
        in ``summary.json`` only. NaN and infinity are left out and counted in
        ``custom/not_finite``.

        Raises:
            ConfigError: the name has characters other than letters, digits and ``_-./``, or the
                value isn't one number.
        """
        self._loop.writer.custom.log(name, value)

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
            raise saves_together(self.group.size)
        valid = "False for save(): with it, checkpoints fall on checkpoint_interval"
        require(not self.config.deterministic, "deterministic", True, valid)
        saved = self._loop.archive.save(final=True)
        if path is None:
            return saved
        described = self._loop.archive.description
        described = import_allowlist.with_changes(described, self.progress.env_changes)
        return checkpoint_writer.export(described, self.policy, Path(path))

    def finish(self, draw: bool = True) -> dict[str, Any]:
        """Evaluate, write ``summary.json`` and, to draw, ``curve.png`` and ``report.html``, once.

        Returns:
            contents of ``summary.json``; empty on ranks other than 0.
        """
        if self._summary is None and self.group.rank == 0:
            interrupt = self.interrupt if self._handle_signals else None
            with self._own_state():
                self._summary = finish(self, self._loop.evaluator, self._notify, interrupt, draw)
        return self._summary or {}

    @property
    def sps(self) -> float:
        """Environment steps per second from the first update to the latest result."""
        return self._loop.writer.tally.sps

    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        return self._loop.writer.summary()

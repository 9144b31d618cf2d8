"""Supervises several learners and restarts them all after a failure.

this process ──► learner 0 (rank 0: files, results) ──► its actors
     │     ╲───► learner 1 ──► its actors             all joined by headrace/distributed/ranks.py
     └── a connection to each: receives results and heartbeats, sends "stop"

Their processes are children of this one (``local.py``), or run on a Ray cluster
(``headrace/ray/learners.py``).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle

from headrace import errors
from headrace.config import Config
from headrace.envs import changes
from headrace.envs.changes import EnvChange
from headrace.envs.names import Registry
from headrace.errors import LearnerFailed, OthersLost
from headrace.evaluating.evaluator import Evaluator
from headrace.evaluating.run_end import finish, report_interrupt
from headrace.launch.learners import Learners, LearnerState, cause, lost_ranks
from headrace.launch.local import LocalLearners
from headrace.nn.policy import Policy
from headrace.processes import library_defaults, stop_signals
from headrace.processes.output import print_line
from headrace.processes.ray_package import ray_package
from headrace.rundir import checkpoint, directories
from headrace.rundir.custom_metrics import checked_value
from headrace.rundir.folders import steps_of
from headrace.rundir.result import Result
from headrace.schedules import steps_at_end
from headrace.trainer.checkpointing import saves_together
from headrace.trainer.hyperparameters import CurrentHyperparameters
from headrace.trainer.start import begin
from headrace.types import SingleLearner
from headrace.validation.fields import checked

_GRACE_S = 2.0  # time for other learners' reports after the first failure
_SAVING_S = 30.0  # time for the other learners to notice the failure and save


class LearnerGroup:
    """A run with ``num_learners`` learners: iterate over it; its methods are those of a Trainer.

    Args:
        config: settings of the run.
        started, notify: see Trainer.

    Raises:
        ConfigError, CheckpointError: see Trainer; no learner was started.
    """

    @library_defaults()
    @checked
    def __init__(
        self,
        config: Config,
        started: float | None = None,
        notify: Callable[[str], None] = print_line,
    ) -> None:
        self._started = time.monotonic() if started is None else started
        stacked_frames = config.stacked_frames  # each learner may change the choice of "auto"
        self._printed: list[str] = []  # lines that learner 0 would repeat

        def print_once(line: str) -> None:
            self._printed.append(line)
            notify(line)

        config, probe, self.run_dir = begin(config, True, SingleLearner(), print_once)
        probe.check_step()
        self.env = probe.env
        if config.run_dir is None:
            self.run_dir = directories.reserve(self.run_dir)
        self._lock = directories.prepare(self.run_dir, config.resume, config.overwrite)
        overrides: dict[str, Any] = {"run_dir": str(self.run_dir), "overwrite": False}
        overrides["stacked_frames"] = stacked_frames
        self.config = dataclasses.replace(config, **overrides)
        self._notify = notify
        self.num_restarts = 0
        self.interrupted = self._stopped = False
        self._begun = False  # this generation has made an update
        self._env_steps, self._seconds = 0, 0.0  # of the latest result
        self._learners: list[LearnerState] = []
        self._living: list[Learners] = []  # at most one
        self._listened = 0.0  # time of the last receive
        self._summary: dict[str, Any] = {}
        self._changes: list[str] = []  # changes of environments, by callbacks of this group
        self._evaluator = Evaluator(self.config, self.env, notify, self._made_changes)
        self._inside = self._ended = False  # inside ``with``; the loop has ended
        self._finished: dict[str, Any] = {}
        self._loaded: tuple[Path, Policy] | None = None  # a checkpoint, and its policy
        weakref.finalize(self, _end, self._living)

    @property
    def policy(self) -> Policy:
        """Policy of the latest checkpoint."""
        latest = checkpoint.find(self.run_dir)
        if self._loaded is None or self._loaded[0] != latest:
            with library_defaults():
                self._loaded = latest, checkpoint.load_one(latest, self.config.network)
        return self._loaded[1]

    def summary(self) -> dict[str, Any]:
        """Return the contents of ``summary.json``."""
        return dict(self._summary)

    def pids(self) -> list[int]:
        """Process ids of the learners, by rank."""
        return [pid for learners in self._living for pid in learners.pids()]

    def stop(self) -> None:
        """Stop training after the current update; a checkpoint is written."""
        self._stopped = True
        for learners in self._living:
            learners.send(0, "interrupt" if self.interrupted else "stop")

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Current values of all float hyperparameters, by name, without the effect of kl_limit."""
        done = self._env_steps, self.config.total_steps, self._seconds, self.config.stop_time_s
        current = CurrentHyperparameters(self.config.algo)
        return current.all(self._env_steps, steps_at_end(*done))

    def set_hyperparameter(self, name: str, value: Any) -> None:
        """Change a float hyperparameter in all learners; see :meth:`Trainer.set_hyperparameter`.

        Raises:
            ConfigError: it isn't a float hyperparameter, or the value is out of range.
        """
        algo = CurrentHyperparameters(self.config.algo).changed(name, value)
        self.config = dataclasses.replace(self.config, algo=algo)  # for restarted learners
        for learners in self._living:
            learners.send(0, "set_hyperparameter", name, cloudpickle.dumps(value))

    def _interrupt(self) -> None:
        self.interrupted = True
        self.stop()

    def close(self) -> None:
        """Stop all learners and their actors, and release the run directory."""
        self._evaluator.close()
        _end(self._living)
        self._lock.release()

    def call_envs(
        self,
        method: str,
        *args: Any,
        evaluation: bool = False,
        training: bool = True,
        **kwargs: Any,
    ) -> None:
        """See :meth:`Trainer.call_envs`."""
        self._change(changes.call(method, args, kwargs, evaluation, training))

    def set_env_attr(
        self, name: str, value: Any, *, evaluation: bool = False, training: bool = True
    ) -> None:
        """See :meth:`Trainer.set_env_attr`."""
        self._change(changes.assign(name, value, evaluation, training))

    def _made_changes(self) -> list[str]:
        return [json.dumps(change) for change in self._summary.get("env_changes", [])]

    def _change(self, change: EnvChange) -> None:
        self._changes.append(change.to_json())
        for learners in self._living:
            learners.send(0, "change_envs", self._changes[-1])

    def log(self, name: str, value: float) -> None:
        """See :meth:`Trainer.log`."""
        value = checked_value(name, value)
        for learners in self._living:
            learners.send(0, "log", name, value)

    def save(self) -> Path:
        """Raise ConfigError: several learners only save together.

        Raises:
            ConfigError: always.
        """
        raise saves_together(self.config.num_learners)

    def finish(self, draw: bool = True) -> dict[str, Any]:
        """See :meth:`Trainer.finish`; runs once."""
        if not self._finished:
            parts = self._evaluator, self._notify, self._interrupt
            with library_defaults():
                self._finished = finish(self, *parts, draw)
        return self._finished

    def __enter__(self) -> LearnerGroup:
        self._inside = True
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._ended:
                self.finish()
            if kind is None:
                report_interrupt(self, self._notify)
        finally:
            self.close()

    def __iter__(self) -> Iterator[Result]:
        yield from self._results()
        if not self._inside:  # otherwise __exit__ reports, after the evaluation
            report_interrupt(self, self._notify)

    def _results(self) -> Iterator[Result]:
        with stop_signals(self._interrupt), contextlib.ExitStack() as stack:
            if not self._inside:
                stack.callback(self.close)
            while True:
                try:
                    yield from self._generation()
                    self._ended = True
                    return
                except LearnerFailed as failure:
                    if self.num_restarts >= self.config.learner_restarts or self._stopped:
                        self._report_saved()
                        raise
                    self.num_restarts += 1
                    self._notify(
                        f"{failure}\nrestarting all learners (restart {self.num_restarts}/"
                        f"{self.config.learner_restarts})"
                    )
                    self.config = self.config.again(checkpoint.exists(self.run_dir))

    def _report_saved(self) -> None:
        """Report the checkpoint from which a failed run can be resumed."""
        if checkpoint.exists(self.run_dir):
            steps = steps_of(checkpoint.find(self.run_dir))
            run = shlex.quote(str(self.run_dir))
            self._notify(f"saved at {steps:,} steps: `headrace resume {run}` continues from there")

    def _generation(self) -> Iterator[Result]:
        """Run one generation of learners, from a new rendezvous to its end.

        Raises:
            LearnerFailed: a learner failed; all have been stopped.
        """
        self._loaded, self._begun = None, False  # the same number of steps may be trained again
        pickled = cloudpickle.dumps((Registry(), self.config, self._started))
        try:
            learners: Learners
            if self.config.cluster is None:
                learners = LocalLearners(self.config, pickled)
            else:
                on_ray = ray_package("learners").ClusterLearners
                learners = on_ray(self.config, pickled, lambda: self._stopped)
            self._living.append(learners)
            for change in self._changes:  # learners skip those in the checkpoint
                learners.send(0, "change_envs", change)
            now = time.monotonic()
            self._learners = [LearnerState(now) for _ in range(self.config.num_learners)]
            if self._stopped:
                self.stop()
            while not all(one.done for one in self._learners):
                yield from self._listen(learners)
                if self.interrupted and not self._begun:
                    raise KeyboardInterrupt  # there is nothing to save yet
                yield from self._check(learners)
            learners.wait(self.config.learner_timeout_s)
        finally:
            _end(self._living)

    def _listen(self, learners: Learners, timeout_s: float = 1.0) -> Iterator[Result]:
        """Process the learners' messages once."""
        messages = learners.receive(timeout_s)
        self._listened = time.monotonic()
        for rank, (kind, *content) in messages:
            one = self._learners[rank]
            one.last_message = self._listened
            if kind == "gone":
                one.gone = True
            elif kind == "alive":
                self._begun |= content[0]
            elif kind == "result":
                self._begun = True
                self._env_steps, self._seconds = content[0].env_steps, content[0].seconds
                yield content[0]
            elif kind == "say":
                if content[0] not in self._printed:
                    self._notify(content[0])
            elif kind == "done":
                one.done = True
                self._summary = content[0] if rank == 0 else self._summary
            elif kind == "failed":
                name, message, one.traceback = content
                one.failure = getattr(errors, name)(message)

    def _check(self, learners: Learners) -> Iterator[Result]:
        """Raise the cause if a learner failed, after a grace period for all reports."""
        start = reported_at = time.monotonic()
        while lost := lost_ranks(self._learners, self._listened, self.config.learner_timeout_s):
            num_at_work = sum(not one.done for one in self._learners)
            now, limit = time.monotonic(), start + _GRACE_S
            if not any(isinstance(one.failure, OthersLost) for one in self._learners):
                reported_at = now  # they report once they have saved
            if self._begun:
                limit = min(start + _SAVING_S, reported_at + _GRACE_S)
            if len(lost) == num_at_work or now >= limit:
                raise cause(self._learners, learners, lost, self.config.learner_timeout_s)
            yield from self._listen(learners, 0.1)


def _end(living: list[Learners]) -> None:
    """Kill the learners' processes."""
    while living:
        living.pop().close()

"""Schedules evaluations during training and records their results."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from headrace.config import Config
from headrace.errors import setting
from headrace.evaluating.evaluator import Evaluator, PlayedEvaluation
from headrace.evaluating.run_end import keep_best
from headrace.nn.multi_policy import AnyPolicy
from headrace.rundir.files import RunLog
from headrace.rundir.run_progress import Progress
from headrace.types import Group

_GROWTH = 1.1  # of the environment steps between two attempts to confirm stop_return


class Evaluations:
    """Evaluates every ``eval_interval`` steps on rank 0, and saves the best policy.

    Evaluations run one at a time; one that becomes due meanwhile starts afterwards, with the
    weights of that time. Training waits for each with ``deterministic`` or ``target_return``, or if
    the evaluator runs in this process; the result is then broadcast to all learners.

    Args:
        config: settings of the run.
        run_dir: run directory.
        group: group of the learners.
        evaluator: runs the episodes.
        notify: called with a line of text if the best policy can't be saved.
        interrupted: returns True to stop waiting for evaluations.
    """

    def __init__(
        self,
        config: Config,
        run_dir: Path,
        group: Group,
        evaluator: Evaluator,
        notify: Callable[[str], None],
        interrupted: Callable[[], bool],
    ) -> None:
        self._config, self._run_dir, self._group = config, run_dir, group
        self._evaluator, self._notify, self._interrupted = evaluator, notify, interrupted
        waits = config.deterministic or config.target_return is not None
        self._waits, self._due = waits or evaluator.in_process, False
        # Other environments, or Atari lives as episodes, have different returns.
        self._confirms = config.eval_episodes > 0 and not config.eval_env_kwargs
        self._next_try = 0.0  # environment steps before which stop_return isn't confirmed again
        self.latest: float | None = None  # mean return
        self.metrics: dict[str, float] = {}  # of the latest evaluation, by the names in files

    @property
    def target_is_reached(self) -> bool:
        """True if the latest evaluation reached ``target_return``."""
        target, mean = self._config.target_return, self.latest
        return target is not None and mean is not None and mean >= target

    def after_update(
        self,
        policy: AnyPolicy,
        progress: Progress,
        seconds: float,
        crossed: bool,
        log: RunLog | None,
    ) -> None:
        """Record a completed evaluation, and start one if due.

        Args:
            seconds: seconds of training.
            crossed: this update crossed a multiple of ``eval_interval``.
            log: log files on rank 0; None elsewhere.
        """
        start, evaluator = time.monotonic(), self._evaluator
        self._due |= crossed
        if log is not None:
            self._take(evaluator.take(), log)
            if self._due and not evaluator.busy:
                self._begin(policy, progress.env_steps, seconds)
                self._take(evaluator.take(), log)
            if self._waits:
                self._take(evaluator.wait(self._interrupted), log)
        if crossed and self._waits:
            self.latest = self._group.broadcast(self.latest)
        progress.exclude(time.monotonic() - start)

    def confirm_stop(self, policy: AnyPolicy, progress: Progress, log: RunLog | None) -> bool:
        """Return True if an evaluation reaches ``stop_return``, as training returns have.

        Training waits for the evaluation, which uses the mode of the final one. After a lower
        return, the next one starts after at least a tenth more steps. Without evaluations, or if
        this one fails, training returns are enough.

        Args:
            log: log files on rank 0; None elsewhere. All ranks call this together.
        """
        target, steps = self._config.stop_return, progress.env_steps
        if target is None:
            return True
        if not self._confirms:
            return self._stops(target, steps, log)
        if steps < self._next_try:
            return False
        start, mean = time.monotonic(), None
        if log is not None:
            self._take(self._evaluator.wait(self._interrupted), log)
            self._begin(policy, steps, progress.now())
            played = self._evaluator.wait(self._interrupted)
            self._take(played, log)
            mean = None if played is None else played.evaluation.mean
        mean = self._group.broadcast(mean)
        progress.exclude(time.monotonic() - start)
        if mean is None or mean >= target:
            return self._stops(target, steps, None if self._interrupted() else log)
        self.latest = mean
        if log is not None and not self._next_try:
            self._notify(_unconfirmed(target, mean, self._config.eval_deterministic))
        self._next_try = _GROWTH * steps
        return False

    def _stops(self, target: float, steps: int, log: RunLog | None) -> bool:
        """Print why training stops, and return True."""
        if log is not None:
            total = self._config.total_steps
            self._notify(f"reached stop_return={target:g} after {steps:,} of {total:,} steps")
        return True

    def end(self, policy: AnyPolicy, progress: Progress, log: RunLog | None) -> None:
        """Complete evaluations in progress or due, unless the run was interrupted."""
        if log is None:
            return
        self._take(self._evaluator.wait(self._interrupted), log)
        if self._due and not self._interrupted():
            self._begin(policy, progress.env_steps, progress.trained_s)
            self._take(self._evaluator.wait(self._interrupted), log)
        self._evaluator.close()

    def _begin(self, policy: AnyPolicy, env_steps: int, seconds: float) -> None:
        self._due = False
        self._evaluator.begin(policy, env_steps, seconds)

    def _take(self, played: PlayedEvaluation | None, log: RunLog) -> None:
        if played is not None:
            self.latest = played.evaluation.mean
            self.metrics = played.evaluation.named_metrics()
            log.evaluation(played.evaluation, played.env_steps, played.seconds)
            if self._config.evaluates_while_training:
                keep_best(self._run_dir, played, self._notify)


def _unconfirmed(target: float, mean: float, deterministic: bool) -> str:
    """Describe an evaluation below ``stop_return``."""
    line = (
        f"training continues: training returns reached stop_return={target:g}, but an "
        f"evaluation returned {mean:.1f}"
    )
    sampled = setting("eval_deterministic", "False")
    return f"{line} with the most likely actions ({sampled} samples)" if deterministic else line

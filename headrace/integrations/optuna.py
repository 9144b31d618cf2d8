"""Prunes trials of an Optuna study.

``headrace sweep`` is a study without a program; see docs/sweeps.md.
"""

from __future__ import annotations

from typing import Any

from headrace.errors import require
from headrace.integrations import needed

_REPORTS = 16  # of a run, unless ``every`` says otherwise


class Pruning:
    """Callback that reports the run's return to a trial, and stops the run if it is pruned.

    Pruners compare trials at equal steps, and results come by the clock. So what is reported is
    the return at the first result behind each multiple of ``every`` steps.

    Args:
        trial: what Optuna gave the objective.
        every: environment steps between two reports; None: a sixteenth of the run's.

    Raises:
        ConfigError: Optuna isn't installed, or ``every`` is less than 1.
        optuna.TrialPruned: out of the run, from a result; it is for ``study.optimize``.
    """

    def __init__(self, trial: Any, every: int | None = None) -> None:
        self._pruned = needed("optuna", "optuna").TrialPruned
        if every is not None:
            require(every >= 1, "every", every, "None, or 1 or more steps")
        self._trial, self._every, self._told = trial, every, 0

    def begin(self, trainer: Any) -> None:
        """Record the run directory among the trial's attributes."""
        self._interval = self._every or max(1, trainer.config.total_steps // _REPORTS)
        self._told = trainer.env_steps // self._interval * self._interval  # of a resumed run
        self._trial.set_user_attr("run_dir", str(trainer.run_dir))

    def __call__(self, result: Any, trainer: Any) -> None:
        """Report the return, and raise TrialPruned if the trial is pruned."""
        if result.episode_return is None:
            return
        due = range(self._told + self._interval, result.env_steps + 1, self._interval)
        for step in due:
            self._trial.report(result.episode_return, step)
            self._told = step
        if due and self._trial.should_prune():
            raise self._pruned(f"a return of {result.episode_return:.4g} at step {self._told:,}")

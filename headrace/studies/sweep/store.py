"""Stores the trials of a sweep in an Optuna journal file that all processes share.

A process that works on a trial holds a lock in its folder, which the kernel releases when the
process ends for any reason. A trial that runs by the journal but isn't locked was interrupted. The
next process that asks for work gets it, with the same values.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from headrace.errors import CheckpointError
from headrace.extras import needs
from headrace.processes import safe_files
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.rundir.lock import Lock, locked
from headrace.studies.identity import alone, check_same
from headrace.studies.sample import Parameter, seed_of
from headrace.studies.sweep.settings import Sweep

NAME = "sweep"
_WAIT_S = 120.0  # timeout of the journal's lock; a write takes milliseconds
_LOOK_S = 0.001  # polling interval of the lock


def optuna() -> Any:
    """Import and return Optuna.

    Raises:
        ConfigError: Optuna isn't installed.
    """
    with needs("headrace sweep", "sweep"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _JournalLock:
    """Lock of Optuna's journal, released with the process; repairs a truncated last line."""

    def __init__(self, file: Path) -> None:
        self._file, self._descriptor = file, -1

    def acquire(self) -> bool:
        file, until = self._file.with_suffix(".lock"), time.monotonic() + _WAIT_S
        self._descriptor = safe_files.lock_descriptor(file)
        while True:
            try:
                fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    self.release()
                    raise CheckpointError(
                        f"waited {_WAIT_S:.0f} s for {file}, held by another process that writes "
                        "the sweep's journal: stop that process and start the command again"
                    ) from None
            time.sleep(_LOOK_S)
        with contextlib.suppress(FileNotFoundError):
            with safe_files.opened(self._file, safe_files.LINES_BYTES) as journal:
                size = journal.seek(0, os.SEEK_END)
                if not size or _ends_a_line(journal):
                    return True
                journal.seek(0)
                end = journal.read().rfind(b"\n") + 1
            safe_files.truncate(self._file, end)
        return True

    def release(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        os.close(descriptor)


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def storage(folder: Path) -> Any:
    """Return Optuna's storage in the folder of a sweep, for use by one thread."""
    journal = optuna().storages.journal
    file = folder / "journal.log"
    if os.path.lexists(file) and not safe_files.is_file(file):  # Optuna would follow a link
        raise CheckpointError(f"{file} is not a regular file: remove it")
    return optuna().storages.JournalStorage(
        journal.JournalFileBackend(str(file), lock_obj=_JournalLock(file))
    )


class Claim(NamedTuple):
    """Trial that this process works on, with its lock."""

    number: int
    values: dict[str, Any]
    trial_id: int
    lock: Lock


class Store:
    """Access of one thread to the trials of a sweep.

    Args:
        sweep: settings; the folder is created if it is missing.

    Raises:
        ConfigError: the folder contains a sweep with other settings, or Optuna is missing.
        CheckpointError: the file system has no locks.
    """

    def __init__(self, sweep: Sweep) -> None:
        self._sweep, self._folder = sweep, Path(sweep.output)
        with checkpoint_errors(self._folder, "used as output"):
            self._folder.mkdir(parents=True, exist_ok=True)
        with alone(self._folder):
            check_same(self._folder / "sweep.json", "a sweep", sweep.identity)
            self._storage = storage(self._folder)
            self.study = optuna().create_study(
                storage=self._storage, study_name=NAME, direction="maximize", load_if_exists=True
            )

    def trials(self) -> list[Any]:
        """Return all of Optuna's frozen trials, by number."""
        return list(self.study.get_trials(deepcopy=False))

    def num_ended(self) -> int:
        """Return the number of trials that have ended, in any process."""
        return sum(trial.state.is_finished() for trial in self.trials())

    def claim(self, given_up: set[int]) -> Claim | None:
        """Claim an interrupted trial or a new one; None if other processes work on all of them.

        Args:
            given_up: numbers of trials to skip.
        """
        with alone(self._folder):
            for trial in self.trials():
                if not trial.state.is_finished() and trial.number not in given_up:
                    lock = locked(self._sweep.trial_dir(trial.number), self._folder)
                    if lock is None:
                        continue
                    if self.trials()[trial.number].state.is_finished():
                        lock.release()
                        continue
                    return self._claimed(trial.number, lock)
            number = len(self.trials())
            if number >= self._sweep.trials:
                return None
            lock = locked(self._sweep.trial_dir(number), self._folder)
            if lock is None:  # new trials are never locked
                raise CheckpointError(f"{self._sweep.trial_dir(number)} is locked by others")
            return self._claimed(number, lock)

    def _claimed(self, number: int, lock: Lock) -> Claim:
        """Return the claim of a locked trial, and enqueue a new one."""
        lock.sign()
        states = optuna().trial.TrialState
        trials = self.trials()
        if number == len(trials) and self._sweep.draws == "random":
            rng = np.random.default_rng([self._sweep.config.seed, number])
            drawn = {one.name: _hashable(one.draw(rng)) for one in self._sweep.parameters}
            self.study.enqueue_trial(drawn)  # one line of the journal, so it is atomic
            trials = self.trials()
        self.study.sampler = optuna().samplers.TPESampler(
            seed=seed_of(self._sweep.config.seed, number), constant_liar=True
        )
        if number < len(trials) and trials[number].state != states.WAITING:
            trial = optuna().trial.Trial(self.study, trials[number]._trial_id)
        else:
            trial = self.study.ask()
        values = {one.name: _suggested(trial, one) for one in self._sweep.parameters}
        return Claim(trial.number, values, trial._trial_id, lock)

    def finish(self, claim: Claim, scores: list[float]) -> None:
        """Record the scores of a trial, one per seed."""
        self._record(claim, "COMPLETE", "scores", scores, float(np.mean(scores)))

    def prune(self, claim: Claim) -> None:
        """Record that a trial was pruned; its score is the last reported one."""
        self._record(claim, "PRUNED", "pruned", True)

    def fail(self, claim: Claim, why: str) -> None:
        """Record that a trial has no score and won't be retried."""
        self._record(claim, "FAIL", "error", why)

    def _record(
        self, claim: Claim, state: str, name: str, attribute: Any, value: float | None = None
    ) -> None:
        trial = optuna().trial.Trial(self.study, claim.trial_id)
        trial.set_user_attr(name, attribute)
        self.study.tell(trial, value, state=optuna().trial.TrialState[state])
        claim.lock.release()


def _suggested(trial: Any, parameter: Parameter) -> Any:
    """Return the value of a parameter in a trial, sampled on first use."""
    name, log = parameter.name, parameter.log
    if parameter.kind == "choice":
        originals = {text: x for x in parameter.values if (text := _hashable(x)) is not x}
        value = trial.suggest_categorical(name, [_hashable(x) for x in parameter.values])
        return originals.get(value, value)
    low, high = parameter.values
    if parameter.is_integer:
        return trial.suggest_int(name, low, high, log=log)
    return trial.suggest_float(name, low, high, log=log)


def _hashable(choice: Any) -> Any:
    """Return a choice for Optuna, whose importances need hashable values: JSON text for lists."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice

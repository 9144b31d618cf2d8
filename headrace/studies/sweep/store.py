"""The trials of a sweep, shared by all processes that work on it: Optuna's journal in a file.

Who works on a trial holds a lock in its folder, which the kernel lets go of however that process
ends. A trial that the journal calls running and nobody holds was cut short, and goes to whoever
asks next, with the values that it has.
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
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.rundir.lock import Lock, locked
from headrace.studies.identity import alone, check_same
from headrace.studies.sample import Parameter, seed_of
from headrace.studies.sweep.settings import Sweep

NAME = "sweep"
_WAIT_S = 120.0  # for others who write to the journal, which takes milliseconds
_LOOK_S = 0.001  # between two tries to


def optuna() -> Any:
    """The library.

    Raises:
        ConfigError: it isn't installed.
    """
    with needs("headrace sweep", "sweep"):
        import optuna
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna


class _JournalLock:
    """Of Optuna's journal, let go of with the process; mends a line that was cut short."""

    def __init__(self, file: Path) -> None:
        self._file, self._held = file, -1

    def acquire(self) -> bool:
        file, until = self._file.with_suffix(".lock"), time.monotonic() + _WAIT_S
        self._held = os.open(file, os.O_RDWR | os.O_CREAT, 0o644)
        while True:
            try:
                fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    self.release()
                    raise CheckpointError(
                        f"waited {_WAIT_S:.0f} s for {file}, which another process holds that "
                        "writes the sweep's journal: end that one, and give the command again"
                    ) from None
            time.sleep(_LOOK_S)
        with contextlib.suppress(FileNotFoundError), self._file.open("rb+") as journal:
            if journal.seek(0, os.SEEK_END) and not _ends_a_line(journal):
                journal.seek(0)
                journal.truncate(journal.read().rfind(b"\n") + 1)
        return True

    def release(self) -> None:
        held, self._held = self._held, -1
        os.close(held)


def _ends_a_line(file: BinaryIO) -> bool:
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def storage(folder: Path) -> Any:
    """Optuna's storage in the folder of a sweep; of one thread."""
    journal = optuna().storages.journal
    file = folder / "journal.log"
    return optuna().storages.JournalStorage(
        journal.JournalFileBackend(str(file), lock_obj=_JournalLock(file))
    )


class Claim(NamedTuple):
    """A trial that this process works on until it lets go of it."""

    number: int
    values: dict[str, Any]
    trial_id: int
    lock: Lock


class Store:
    """Trials as one thread sees them.

    Args:
        sweep: whose folder is made if it is missing.

    Raises:
        ConfigError: the folder holds a sweep with other settings, or Optuna is missing.
        CheckpointError: its file system has no locks.
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
        """All of Optuna's frozen trials, by number."""
        return list(self.study.get_trials(deepcopy=False))

    def claim(self, given_up: set[int]) -> Claim | None:
        """A trial that was cut short, or a new one; None: there is none that nobody works on.

        Args:
            given_up: numbers that aren't taken up again.
        """
        with alone(self._folder):
            for trial in self.trials():
                if not trial.state.is_finished() and trial.number not in given_up:
                    lock = locked(self._sweep.trial_dir(trial.number))
                    if lock is None:
                        continue
                    if self.trials()[trial.number].state.is_finished():
                        lock.release()
                        continue
                    return self._claimed(trial.number, lock)
            number = len(self.trials())
            if number >= self._sweep.trials:
                return None
            lock = locked(self._sweep.trial_dir(number))
            if lock is None:  # no trial has it, so it can't be
                raise CheckpointError(f"{self._sweep.trial_dir(number)} is locked by others")
            return self._claimed(number, lock)

    def _claimed(self, number: int, lock: Lock) -> Claim:
        lock.sign()
        states = optuna().trial.TrialState
        trials = self.trials()
        if number == len(trials) and self._sweep.draws == "random":
            rng = np.random.default_rng([self._sweep.config.seed, number])
            drawn = {one.name: _hashable(one.draw(rng)) for one in self._sweep.parameters}
            self.study.enqueue_trial(drawn)  # in one line of the journal
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
        """A trial has these scores, one per seed."""
        self._tell(claim, "COMPLETE", "scores", scores, float(np.mean(scores)))

    def prune(self, claim: Claim) -> None:
        """A trial was ended early; its score is what it reported last."""
        self._tell(claim, "PRUNED", "pruned", True)

    def fail(self, claim: Claim, why: str) -> None:
        """A trial has no score, and would have none if it were done again."""
        self._tell(claim, "FAIL", "error", why)

    def _tell(
        self, claim: Claim, state: str, name: str, attribute: Any, value: float | None = None
    ) -> None:
        trial = optuna().trial.Trial(self.study, claim.trial_id)
        trial.set_user_attr(name, attribute)
        self.study.tell(trial, value, state=optuna().trial.TrialState[state])
        claim.lock.release()


def _suggested(trial: Any, parameter: Parameter) -> Any:
    """The value that a trial has of a parameter, or now gets."""
    name, log = parameter.name, parameter.log
    if parameter.kind == "choice":
        given = {text: x for x in parameter.values if (text := _hashable(x)) is not x}
        found = trial.suggest_categorical(name, [_hashable(x) for x in parameter.values])
        return given.get(found, found)
    low, high = parameter.values
    if parameter.whole:
        return trial.suggest_int(name, low, high, log=log)
    return trial.suggest_float(name, low, high, log=log)


def _hashable(choice: Any) -> Any:
    """What Optuna is given for a choice, whose importances need hashes: of a list its JSON text."""
    return json.dumps(choice) if isinstance(choice, list | dict) else choice

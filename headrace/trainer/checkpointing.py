"""Saves and loads checkpoints of a run with one or several learners."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.names import Tasks
from headrace.envs.probe import Probe
from headrace.errors import (
    CheckpointError,
    ConfigError,
    LearnerFailed,
    NonFinite,
    OthersLost,
    shown,
)
from headrace.nn.multi_policy import MultiPolicy
from headrace.processes import signals_held
from headrace.rundir import checkpoint, checkpoint_writer, checksums, directories, import_allowlist
from headrace.rundir.atomic_files import FOREIGN, TolerantWriter, checkpoint_errors, write_json
from headrace.rundir.episodes import mean_return
from headrace.rundir.lock import Lock
from headrace.spaces.json import space_to_json
from headrace.spaces.unified_spaces import Spaces
from headrace.trainer.checkpoint_state import CheckpointState, check_same
from headrace.trainer.lone_checkpoint import best_return, claimed
from headrace.types import Group


class Checkpointer:
    """Saves and loads checkpoints. Only rank 0 touches files; every learner makes the same calls.

    Prepares the run directory, loads its latest checkpoint if the run resumes, and writes
    ``config.json``.

    Args:
        run_dir: run directory.
        config: settings of the run.
        found: probe of its environment.
        group: group of its learners.
        saved: state of this learner.
        notify: called when a checkpoint can't be saved, and when saving works again.
        locks: hold the run directory's lock; False if the parent process holds it.

    Raises:
        CheckpointError: the run directory exists, or the run to resume doesn't exist or doesn't
            fit this one.
    """

    def __init__(
        self,
        run_dir: Path,
        config: Config,
        probe: Probe,
        group: Group,
        saved: CheckpointState,
        notify: Callable[[str], None],
        locks: bool = True,
    ) -> None:
        self._run_dir, self._config, self._group, self._saved = run_dir, config, group, saved
        self._saved_at = time.monotonic()  # time of the latest attempt
        self._locks = locks
        self._tried = -1  # number of updates at the latest attempt of a final checkpoint
        self.written = -1  # number of updates in the latest checkpoint
        self._path = run_dir
        self._disk, self._notify = TolerantWriter(notify), notify
        self.description: dict[str, Any] = {
            "format": checkpoint_writer.FORMAT,
            "observation_space": space_to_json(probe.observation_space),
            "action_space": space_to_json(probe.action_space),
            "info_mask": probe.info_mask,
            "mask_source": probe.mask_source,
        }
        if job := os.environ.get(checksums.JOB):
            self.description["job"] = job
        self.describe(config)
        if isinstance(saved.policy, MultiPolicy):
            self.description["policies"] = saved.policy.mapping.to_json()
            self.description["agent_spaces"] = _written(probe.own_spaces)
        if isinstance(probe.env, Tasks):
            self.description["task_spaces"] = _written(probe.env.own)
        self._lock: Lock | None = None
        try:
            if group.rank == 0 and locks:
                self._lock = directories.prepare(run_dir, config.resume, config.overwrite)
            elif group.rank == 0:
                directories.begin(run_dir, config.overwrite)
            if config.resume:
                self._load()
            if group.rank == 0:
                describe = partial(write_json, run_dir / "config.json", self.description)
                if locks or not config.resume:
                    describe()
                else:  # a resumed run continues on a full disk
                    self._disk.attempt("writing config.json", describe)
        except BaseException:
            self.close()
            raise
        self._loaded = saved.progress.updates

    def describe(self, config: Config) -> None:
        """Set the settings that later checkpoints save."""
        values = config.to_json()
        self.description |= {"config": values, "signature": import_allowlist.sign(values)}

    def close(self) -> None:
        """Release the run directory's lock; safe to call twice."""
        if self._lock is not None:
            self._lock.release()

    def save(self, final: bool = False) -> Path:
        """Write a checkpoint. Disk errors are reported, and the next checkpoint tries again.

        Args:
            final: no checkpoint follows; disk errors raise.

        Returns:
            path of the latest checkpoint that was written.

        Raises:
            CheckpointError: the final checkpoint can't be written.
            NonFinite: a weight isn't finite; nothing was written.
        """
        self._saved.check_finite()
        if self._group.size > 1:  # it waits for other learners, which may have exited
            return self._save(final)
        with signals_held():
            return self._save(final)

    def is_due(self) -> bool:
        """Return True if ``checkpoint_interval_s`` seconds have passed since the latest attempt."""
        passed_s = time.monotonic() - self._saved_at
        return passed_s >= self._config.checkpoint_interval_s and not self._config.deterministic

    def save_rest(self, error: BaseException | None) -> None:
        """Save updates since the latest checkpoint before ``error`` propagates.

        A failure here is reported and never replaces ``error``. Nothing is saved after a non-finite
        update, or if learners differ.
        """
        new = self._saved.progress.updates > max(self._loaded, self.written, self._tried)
        if not new or isinstance(error, NonFinite):
            return
        try:
            if self._group.size == 1:
                self.save(final=True)
            elif self._may_save_alone(error):
                self._save_alone()
        except Exception as failure:
            self._notify(f"could not save the updates since the latest checkpoint: {failure}")

    def _may_save_alone(self, error: BaseException | None) -> bool:
        """Return True if this learner's weights are valid and may be saved alone."""
        is_valid = isinstance(error, OthersLost) or not isinstance(error, LearnerFailed)
        return is_valid and not self._config.deterministic  # which saves at fixed steps

    def _save_alone(self) -> None:
        """Save without the other learners, some of which have died.

        All learners have the same weights and optimiser state. The first one to get here saves, and
        the others wait for it. Its replay buffer and episodes stand in for those of the others.
        Rank 0 may be dead, so any rank may save if a parent process holds the lock for all.
        """
        if self._group.rank > 0 and (self._locks or self._config.cluster is not None):
            return
        state, run_dir, size = self._saved, self._run_dir, self._group.size
        state.check_finite()
        with signals_held(), claimed(run_dir, state.progress.env_steps) as is_first:
            if is_first:
                if self._group.rank > 0:
                    state.progress.best_return = best_return(run_dir)
                own, episodes = state.own()
                self._write_final(state.to_dict([own] * size, [episodes] * size))

    def _save(self, final: bool) -> Path:
        progress = self._saved.progress
        self._saved_at = time.monotonic()
        if self._group.size == 1 and progress.updates == self.written:
            return self._path
        progress.epoch += self._config.deterministic
        own = self._group.gather_objects(self._saved.own())
        if self._group.rank > 0 or progress.updates == self.written:
            return self._path
        states, parts = zip(*own, strict=True)
        more = self._saved.to_dict(list(states), list(parts))
        if final:
            self._write_final(more)
        else:
            self._disk.attempt("saving a checkpoint", lambda: self._write(more))
        return self._path

    def _write(self, more: dict[str, Any]) -> None:
        progress = self._saved.progress
        mean, before = mean_return(more["episodes"]), progress.best_return
        improved = mean is not None and (before is None or mean > before)
        if improved:
            progress.best_return = mean  # only rank 0 needs it
        try:
            state = progress.state_dict() | more
            described = import_allowlist.with_changes(self.description, progress.env_changes)
            path = checkpoint_writer.save(self._run_dir, described, self._saved.policy, state)
            if improved and not self._config.evaluates_while_training:
                checkpoint_writer.point("best", path)
        except CheckpointError:
            progress.best_return = before
            raise
        self.written, self._path = progress.updates, path
        rotate = lambda: checkpoint_writer.rotate(self._run_dir, self._config.keep_checkpoints)  # noqa: E731
        self._disk.attempt("deleting old checkpoints", rotate)

    def _write_final(self, more: dict[str, Any]) -> None:
        self._tried = self._saved.progress.updates
        try:
            if not (self._run_dir / "config.json").exists():  # the directory was removed
                with checkpoint_errors(self._run_dir):
                    self._run_dir.mkdir(parents=True, exist_ok=True)
                write_json(self._run_dir / "config.json", self.description)
            self._write(more)
        except CheckpointError as error:
            remaining = "there is no earlier checkpoint"
            if checkpoint.exists(self._run_dir):
                remaining = f"the latest saved checkpoint is {checkpoint.find(self._run_dir).name}"
            raise CheckpointError(
                f"the last checkpoint could not be saved: {error}; {remaining}"
            ) from error

    def _load(self) -> None:
        """Load the latest checkpoint, which may have been saved by another number of learners."""
        loaded: tuple[Any, ...] = ()
        if self._group.rank == 0:
            folder = checkpoint.find(self._run_dir)
            check_same(folder, self.description)
            checkpoint.load_weights(folder, self._saved.policy)
            state = self._saved.read(folder, self._config.algo_name)
            loaded = str(folder), self._saved.policy.state_dict(), state
        name, weights, state = self._group.broadcast(loaded)
        try:
            self._saved.restore(weights, state, self._group)
        except (*FOREIGN, RuntimeError) as error:
            why = shown(error)
            raise CheckpointError(f"{name}/trainer.pt doesn't fit this run: {why}") from error
        self._saved.progress.epoch += not self._config.deterministic


def _written(spaces: Sequence[Spaces]) -> list[list[Any]]:
    return [list(map(space_to_json, own)) for own in spaces]


def saves_together(num_learners: int) -> ConfigError:
    """Return the error for a call of ``save()`` in a run with several learners."""
    return ConfigError(
        f"save() needs num_learners=1, not {num_learners}: several learners save together, every "
        "checkpoint_interval steps or checkpoint_interval_s seconds, and at the end"
    )

"""Commands of a cluster job: for its first start and for restarts after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import hashlib
import itertools
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import LaunchFailed
from headrace.processes import safe_files
from headrace.rundir import checksums, lock
from headrace.rundir.atomic_files import replace_text
from headrace.rundir.folders import saved, steps_of

_OVERWRITE = "--overwrite"


@dataclass(frozen=True)
class JobSpec:
    """Specification of a job, stored in its script or manifest; words in braces are substituted.

    ``run_dir`` may contain %j, %A and %a, as in sbatch's file names.
    """

    command: list[str]  # on a running cluster
    from_scratch: list[str]  # the same, after a start of this job that left no checkpoint
    again: list[str]  # the same, after one that did
    run_dir: str = ""  # "" for commands without one
    start_timeout_s: float = 300.0
    requeue: bool = True
    ray: bool = True  # start Ray first; False for single-node commands
    key: str = field(default_factory=lambda: secrets.token_hex(8))  # unique among jobs

    @staticmethod
    def read(text: str) -> JobSpec:
        return JobSpec(**json.loads(text))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def words(self, run_dir: Path | None, job: str, **known: str) -> list[str]:
        """Return the command of this start: one that resumes if the job has left a checkpoint.

        The first start writes a file next to the run directory, with the job's name and hashes of
        the checkpoints that already exist. Later starts treat all other checkpoints as their own.
        Checkpoints contain the id of their job, so those of equal runs have different hashes.
        No file is written if the command will fail: because it needs a free directory and another
        job's files are there, or because another process trains there. A later start without a
        checkpoint overwrites nothing: ``--overwrite`` moves the old files to ``RUN.start-1``.

        Args:
            run_dir: path of the run directory on this machine.
            job: identifier of the job, the same in all its starts.
            known: substitutions for "{address}" and the like.

        Raises:
            LaunchFailed: the file can't be written, or the directory can't be moved.
        """
        words = self.command
        if run_dir is not None:
            try:
                mark = _Mark.read(run_dir)
                if mark is not None and mark.job == job:
                    words = self.again if [*_own_steps(run_dir)] else self._begin_again(run_dir)
                elif not _is_held(run_dir) and (
                    self.from_scratch == self.command or not _is_used(run_dir)
                ):
                    _Mark(job, _checkpoints(run_dir)).write(run_dir)
            except OSError as error:
                raise LaunchFailed(
                    f"can't write next to run_dir={str(run_dir)!r}: {error}"
                ) from None
        for name, value in {"run": str(run_dir), **known}.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words

    def _begin_again(self, run_dir: Path) -> list[str]:
        """Return the command if earlier starts saved no checkpoint; move their files away."""
        if _OVERWRITE not in self.from_scratch:
            return self.from_scratch
        if _is_used(run_dir) and not _is_held(run_dir):
            here = run_dir.resolve()  # a link to a folder stays one
            free = (here.with_name(f"{here.name}.start-{n}") for n in itertools.count(1))
            here.rename(next(path for path in free if not os.path.lexists(path)))
            if run_dir.is_symlink():
                here.mkdir()
        return [word for word in self.from_scratch if word != _OVERWRITE]


def steps_saved(run_dir: Path | None) -> int:
    """Return the environment steps of the newest checkpoint of a job's own run, or 0."""
    return 0 if run_dir is None else max(_own_steps(run_dir), default=0)


@dataclass(frozen=True)
class _Mark:
    """Contents of the file next to a run directory."""

    job: str
    before: dict[str, str]  # checkpoints of earlier jobs, see _checkpoints

    @staticmethod
    def read(run_dir: Path) -> _Mark | None:
        """Read the file; None if it is missing or invalid."""
        try:
            return _Mark(**safe_files.read_json(_path(run_dir)))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    def write(self, run_dir: Path) -> None:
        """Write the file, atomically."""
        path = _path(run_dir)
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps(dataclasses.asdict(self)))


def _path(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.job")


def _checkpoints(run_dir: Path) -> dict[str, str]:
    """Return a hash of the checksums of each checkpoint, by name."""
    hashes = {}
    for path in saved(run_dir / "checkpoints"):
        sums = path / checksums.NAME
        content = b""
        with contextlib.suppress(FileNotFoundError):
            content = safe_files.read_bytes(sums, safe_files.TEXT_BYTES, run_dir)
        hashes[path.name] = hashlib.sha256(content).hexdigest()
    return hashes


def _own_steps(run_dir: Path) -> Iterator[int]:
    """Yield the steps of each checkpoint that didn't exist before the job."""
    if (mark := _Mark.read(run_dir)) is not None:
        for name, content in _checkpoints(run_dir).items():
            if mark.before.get(name) != content:
                yield steps_of(Path(name))


def _is_used(run_dir: Path) -> bool:
    return run_dir.exists() and any(run_dir.iterdir())


def _is_held(run_dir: Path) -> bool:
    """Return whether another process trains there and holds the directory's lock."""
    # An error means: no lock file, or a file system without locks.
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        file = stack.enter_context(safe_files.opened(run_dir / lock.NAME, safe_files.TEXT_BYTES))
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False

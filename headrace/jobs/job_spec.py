"""Commands of a cluster job: for its first start and for restarts after an interruption."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.errors import LaunchFailed
from headrace.rundir import lock

_STEP = re.compile(r"step_(\d+)(-\d+)?")


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

        The first start writes a file with the job's name next to the run directory. Later starts
        treat newer files in the directory as their own. No file is written if the command
        requires a free directory and it isn't, because the files are another job's, or if another
        process trains there, because the command will fail.

        Args:
            run_dir: path of the run directory on this machine.
            job: identifier of the job, the same in all its starts.
            known: substitutions for "{address}" and the like.

        Raises:
            LaunchFailed: the file can't be written.
        """
        words = self.command
        if run_dir is not None:
            mark = _mark(run_dir)
            try:
                if mark.exists() and mark.read_text(encoding="utf-8") == job:
                    words = self.again if [*_own_steps(run_dir)] else self.from_scratch
                elif not _is_held(run_dir) and (
                    self.from_scratch == self.command or not _is_used(run_dir)
                ):
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.write_text(job, encoding="utf-8")
            except OSError as error:
                raise LaunchFailed(
                    f"can't write next to run_dir={str(run_dir)!r}: {error}"
                ) from None
        for name, value in {"run": str(run_dir), **known}.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words


def steps_saved(run_dir: Path | None) -> int:
    """Return the environment steps of the newest checkpoint of a job's own run, or 0."""
    return 0 if run_dir is None else max(_own_steps(run_dir), default=0)


def _mark(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.job")


def _own_steps(run_dir: Path) -> Iterator[int]:
    """Yield the steps of each checkpoint that is newer than the mark."""
    if (mark := _mark(run_dir)).exists():
        since = mark.stat().st_mtime_ns
        for path in run_dir.glob("checkpoints/step_*"):
            step = _STEP.fullmatch(path.name)
            if step is not None and path.stat().st_mtime_ns >= since:
                yield int(step[1])


def _is_used(run_dir: Path) -> bool:
    return run_dir.exists() and any(run_dir.iterdir())


def _is_held(run_dir: Path) -> bool:
    """Return whether another process trains there and holds the directory's lock."""
    with contextlib.suppress(OSError):  # no lock, or a file system without locks
        descriptor = os.open(run_dir / lock.NAME, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False

"""What runs on a cluster that is up, at first and after a start before it was cut short."""

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

_STEP = re.compile(r"step_(\d+)(-\d+)?")
_LOCK = "lock"  # of a run directory


@dataclass(frozen=True)
class JobSpec:
    """What a job is to do, as it stands in its script or manifest; words in braces are known there.

    ``run_dir`` may have %j, %A and %a in it, as sbatch has them in names of files.
    """

    command: list[str]  # on a cluster that is up
    anew: list[str]  # the same, after a start of this job that left no checkpoint
    again: list[str]  # the same, after one that did
    run_dir: str = ""  # "" for commands that have none
    start_timeout_s: float = 300.0
    requeue: bool = True
    ray: bool = True  # bring Ray up before; False for what one node does without
    meet: str = ""  # a folder where a driver elsewhere is met, which the cluster is for; ""
    key: str = field(default_factory=lambda: secrets.token_hex(8))  # no other job has it

    @staticmethod
    def read(text: str) -> JobSpec:
        return JobSpec(**json.loads(text))

    def write(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    def words(self, run_dir: Path | None, job: str, **known: str) -> list[str]:
        """The command of this start of a job: one that goes on, if the job has left a checkpoint.

        The first start leaves a file with the job's name beside the run directory, by which later
        ones know that what is newer in there is their own. It leaves none where the command is to
        find the directory free and will not, as then what is in there is another's, nor where
        somebody trains there, so that the command will be refused.

        Args:
            run_dir: as it is called here. job: the same in all its starts, and in no other job.
            known: what stands for "{address}" and the like.

        Raises:
            LaunchFailed: the file can't be written.
        """
        words = self.command
        if run_dir is not None:
            mark = _mark(run_dir)
            try:
                if mark.exists() and mark.read_text(encoding="utf-8") == job:
                    words = self.again if [*_own_steps(run_dir)] else self.anew
                elif not _is_held(run_dir) and (self.anew == self.command or not _is_used(run_dir)):
                    mark.parent.mkdir(parents=True, exist_ok=True)
                    mark.write_text(job, encoding="utf-8")
            except OSError as error:
                raise LaunchFailed(
                    f"can't write beside run_dir={str(run_dir)!r}: {error}"
                ) from None
        for name, value in {"run": str(run_dir), **known}.items():
            words = [word.replace(f"{{{name}}}", value) for word in words]
        return words


def steps_saved(run_dir: Path | None) -> int:
    """Environment steps behind the newest checkpoint of a run's own job; 0: there is none."""
    return 0 if run_dir is None else max(_own_steps(run_dir), default=0)


def _mark(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.job")


def _own_steps(run_dir: Path) -> Iterator[int]:
    """Of each checkpoint that is newer than the mark."""
    if (mark := _mark(run_dir)).exists():
        since = mark.stat().st_mtime_ns
        for path in run_dir.glob("checkpoints/step_*"):
            step = _STEP.fullmatch(path.name)
            if step is not None and path.stat().st_mtime_ns >= since:
                yield int(step[1])


def _is_used(run_dir: Path) -> bool:
    return run_dir.exists() and any(run_dir.iterdir())


def _is_held(run_dir: Path) -> bool:
    """Whether somebody trains there, who holds the directory's lock."""
    with contextlib.suppress(OSError):  # no lock, or a file system without them
        descriptor = os.open(run_dir / _LOCK, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False

"""Decides which of several surviving learners saves after others have died."""

from __future__ import annotations

import contextlib
import fcntl
from collections.abc import Iterator
from pathlib import Path

from headrace.errors import CheckpointError
from headrace.processes import safe_files
from headrace.rundir import checkpoint
from headrace.rundir.atomic_files import checkpoint_errors
from headrace.rundir.folders import steps_of


@contextlib.contextmanager
def claimed(run_dir: Path, env_steps: int) -> Iterator[bool]:
    """Let several processes run the block in turn; yield True to the one that has to save.

    Yield False if a checkpoint of ``env_steps`` or more steps exists.
    """
    folder = run_dir / "checkpoints"
    with contextlib.ExitStack() as stack:
        with checkpoint_errors(folder):
            run_dir.mkdir(parents=True, exist_ok=True)
            safe_files.make_folder(folder, run_dir)
            descriptor = stack.enter_context(safe_files.folder(folder, run_dir))
        with contextlib.suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        saved = checkpoint.exists(run_dir) and steps_of(checkpoint.find(run_dir)) >= env_steps
        yield not saved


def best_return(run_dir: Path) -> float | None:
    """Read the best return from the best checkpoint, because only rank 0 has it in memory."""
    with contextlib.suppress(CheckpointError):
        if checkpoint.exists(run_dir):
            state = checkpoint.load_trainer(checkpoint.find(run_dir, "best"))
            return state.get("best_return")
    return None

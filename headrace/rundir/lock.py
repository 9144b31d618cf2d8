"""Locks a run directory, so that it has one writer at a time."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import time
import warnings
import weakref
from pathlib import Path

from headrace.errors import CheckpointError, setting
from headrace.processes import safe_files
from headrace.rundir.atomic_files import checkpoint_errors

NAME = "lock"


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class LockHeld(CheckpointError):
    """Raised if another process holds a lock."""


class Lock:
    """Holds the file ``lock`` of a run directory until ``release``, or until the process dies.

    The kernel ties the lock to the open file, which no child process inherits. The file itself
    remains and names its last holder.

    Args:
        required: raise if the file system has no locks, instead of a warning.

    Raises:
        LockHeld: another process holds the lock.
        CheckpointError: the file can't be opened, or the file system has no locks.
    """

    def __init__(self, run_dir: Path, required: bool = False, root: Path | None = None) -> None:
        with checkpoint_errors(run_dir / NAME):
            self._descriptor = safe_files.lock_descriptor(run_dir / NAME, root)
        self.release = weakref.finalize(self, os.close, self._descriptor)
        _held.add(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            self.release()
            raise LockHeld(_taken(run_dir, holder)) from None
        except OSError as error:
            where = f"{run_dir} is on a file system without locks"
            if required:
                self.release()
                raise CheckpointError(
                    f"{where} ({error.strerror}), so processes that share it would duplicate work: "
                    f"choose a folder on another one with {setting('output', repr('FOLDER'))}"
                ) from error
            warnings.warn(f"{where}: make sure that only one process trains there", stacklevel=2)

    def sign(self) -> None:
        """Write the holder into the file if there is disk space; it is only informational."""
        if not self.release.alive:
            return
        with contextlib.suppress(OSError):
            mine = {
                "pid": os.getpid(),
                "host": socket.gethostname(),
                "since": time.strftime("%Y-%m-%d %H:%M:%S %z"),
            }
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, (json.dumps(mine) + "\n").encode(), 0)

    def _holder(self) -> dict[str, object]:
        with contextlib.suppress(OSError, ValueError):
            return dict(json.loads(os.pread(self._descriptor, 4096, 0)))
        return {}


def locked(folder: Path, root: Path) -> Lock | None:
    """Lock a folder of a study, creating it if needed; None if another process holds the lock.

    Args:
        root: folder of the study; see :mod:`headrace.processes.safe_files`.

    Raises:
        CheckpointError: the folder can't be created, it contains a link, or the file system has no
            locks.
    """
    with checkpoint_errors(folder):
        safe_files.make_folders(folder, root)
    for path in folder.iterdir():
        if path.is_symlink():  # a run may be trained there
            raise CheckpointError(f"{path} is a symbolic link, which is not followed: remove it")
    try:
        return Lock(folder, required=True, root=root)
    except LockHeld:
        return None


def _close_all() -> None:
    """Release all locks in a forked child, which would hold them beyond its parent's death."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_all)


def _taken(run_dir: Path, holder: dict[str, object]) -> str:
    if not holder:
        return f"run directory {run_dir} is in use by another process: choose another run_dir"
    pid, host, since = (holder.get(name, "unknown") for name in ("pid", "host", "since"))
    if (pid, host) == (os.getpid(), socket.gethostname()):
        return (
            f"run directory {run_dir} is in use by this process since {since}: close() its "
            "Trainer, or choose another run_dir"
        )
    return (
        f"run directory {run_dir} is in use by process {pid} on {host} since {since}: wait "
        "until it ends, stop it, or choose another run_dir"
    )

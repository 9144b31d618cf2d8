"""One writer at a time in a run directory."""

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
from headrace.rundir.atomic_files import told

NAME = "lock"


_held: weakref.WeakSet[Lock] = weakref.WeakSet()


class LockHeld(CheckpointError):
    """Somebody else holds a lock."""


class Lock:
    """Holds the file ``lock`` of a run directory until ``release``, or until the process dies.

    The kernel holds it with the open file, which no child process keeps. The file itself stays,
    and says who had it last.

    Args:
        required: where the file system has no locks, raise; otherwise that is a warning.

    Raises:
        Taken: somebody else has it.
        CheckpointError: the file can't be opened, or the file system has no locks.
    """

    def __init__(self, run_dir: Path, required: bool = False) -> None:
        with told(run_dir / NAME):
            self._descriptor = os.open(run_dir / NAME, os.O_RDWR | os.O_CREAT, 0o644)
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
                    f"{where} ({error.strerror}), so processes that share it would train the same: "
                    f"choose a folder on one that has them with {setting('output', repr('FOLDER'))}"
                ) from error
            warnings.warn(f"{where}: take care that only one process trains there", stacklevel=2)

    def sign(self) -> None:
        """Write down who holds it, if the disk has room for it: it is only a note."""
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


def locked(folder: Path) -> Lock | None:
    """The lock of a folder, which is made where it isn't there; None: somebody else has it.

    Raises:
        CheckpointError: it can't be made, or the file system has no locks.
    """
    with told(folder):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        return Lock(folder, required=True)
    except LockHeld:
        return None


def _close_all() -> None:
    """A child that is forked, without exec, would hold locks beyond its parent's death."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_close_all)


def _taken(run_dir: Path, holder: dict[str, object]) -> str:
    if not holder:
        return (
            f"run directory {run_dir} is being written by another process: choose another run_dir"
        )
    pid, host, since = (holder.get(name, "unknown") for name in ("pid", "host", "since"))
    if (pid, host) == (os.getpid(), socket.gethostname()):
        return (
            f"run directory {run_dir} is being written by this process since {since}: close() the "
            "Trainer that does, or choose another run_dir"
        )
    return (
        f"run directory {run_dir} is being written by process {pid} on {host} since {since}: wait "
        "for its end, stop it, or choose another run_dir"
    )

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

from headrace.errors import CheckpointError

NAME = "lock"


class Lock:
    """Holds the file ``lock`` of a run directory until ``release``, or until the process dies.

    The kernel holds it with the open file, which no child process keeps. The file itself stays,
    and says who had it last.

    Raises:
        CheckpointError: somebody else has it.
        OSError: the file can't be opened.
    """

    def __init__(self, run_dir: Path) -> None:
        self._descriptor = os.open(run_dir / NAME, os.O_RDWR | os.O_CREAT, 0o644)
        self.release = weakref.finalize(self, os.close, self._descriptor)
        _close_in_forked_children(self)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = self._holder()
            self.release()
            raise CheckpointError(_taken(run_dir, holder)) from None
        except OSError:
            warnings.warn(
                f"{run_dir} is on a file system without locks: take care that only one process "
                "trains there",
                stacklevel=2,
            )

    def sign(self) -> None:
        """Write down who holds it."""
        if self.release.alive:
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


def _close_in_forked_children(lock: Lock) -> None:
    """A child that is forked, without exec, would hold the lock beyond its parent's death."""
    weak = weakref.ref(lock)

    def close() -> None:
        if (held := weak()) is not None:
            held.release()

    os.register_at_fork(after_in_child=close)


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

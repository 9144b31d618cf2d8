"""Kills a process tree whose root has died, even if all its other processes are stopped.

A fork server imports this module before it serves. Elsewhere the import does nothing.
"""

from __future__ import annotations

import atexit
import gc
import os
import threading
import time
import warnings

from headrace.processes.process_tree import MARK, kill_descendants

HEAD = "HEADRACE_HEAD"  # process id of the root, set while it starts the fork server
_POLL_S = 0.5


def _watch(head: int) -> None:
    while os.getppid() == head:
        time.sleep(_POLL_S)
    _end_all()
    os._exit(0)


def _end_all() -> None:
    kill_descendants([os.getpid()], [os.environ.get(MARK, "")])


def _check_at_exit(head: int, server: int) -> None:
    """Check for the root's death when the fork server exits, which may happen before the poll.

    Ends the process at once, because readers of the root's output wait for this process as well,
    and Python would need half a second to unload torch. Does nothing in forks of the server.
    """
    if os.getpid() != server:
        return
    deadline = time.monotonic() + _POLL_S
    while os.getppid() == head and time.monotonic() < deadline:
        time.sleep(0.01)
    if os.getppid() != head:
        _end_all()
    os._exit(0)


def _collect_again() -> None:
    """Turn on garbage collection in a child, for new objects only."""
    gc.freeze()
    gc.enable()


def _begin() -> None:
    """Watch the process that HEAD names, if it is set."""
    if HEAD not in os.environ:
        return
    # The thread sleeps while the fork server forks, and holds no locks that a child could need.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    gc.disable()  # collections take a fifth of the time of the imports that follow
    os.register_at_fork(after_in_child=_collect_again)
    head = int(os.environ.pop(HEAD))
    atexit.register(_check_at_exit, head, os.getpid())
    threading.Thread(target=_watch, args=(head,), name="headrace-guard", daemon=True).start()


_begin()

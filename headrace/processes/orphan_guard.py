"""Ends a family whose head has died, also where every other process of it is stopped.

A fork server imports this before it serves, or begins it. Elsewhere the import does nothing.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import warnings

from headrace.processes.process_tree import MARK, end_kin

HEAD = "HEADRACE_HEAD"  # the process that starts the fork server, while it does
_POLL_S = 0.5


def _watch(head: int) -> None:
    while os.getppid() == head:
        time.sleep(_POLL_S)
    _end_all()
    os._exit(0)


def _end_all() -> None:
    end_kin([os.getpid()], [os.environ.get(MARK, "")])


def _last_look(head: int) -> None:
    """Without children the fork server ends with the head, before that is seen above."""
    deadline = time.monotonic() + _POLL_S
    while os.getppid() == head and time.monotonic() < deadline:
        time.sleep(0.01)
    if os.getppid() != head:
        _end_all()


def begin() -> None:
    """Watch the process that HEAD names, where it does, from now on."""
    if HEAD not in os.environ:
        return
    # The thread sleeps while the fork server forks, and holds nothing that a child could miss.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    head = int(os.environ.pop(HEAD))
    atexit.register(_last_look, head)
    threading.Thread(target=_watch, args=(head,), name="headrace-guard", daemon=True).start()


begin()

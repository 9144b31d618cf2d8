"""Ends a family whose head has died, also where every other process of it is stopped.

A fork server imports this before it serves. Elsewhere the import does nothing.
"""

from __future__ import annotations

import os
import threading
import time
import warnings

from headrace.exits.kin import MARK, end_kin

HEAD = "HEADRACE_HEAD"  # the process that starts the fork server, while it does
_POLL_S = 0.5


def _watch(head: int) -> None:
    while os.getppid() == head:
        time.sleep(_POLL_S)
    end_kin([os.getpid()], [os.environ.get(MARK, "")])
    os._exit(0)


if HEAD in os.environ:
    # The thread sleeps while the fork server forks, and holds nothing that a child could miss.
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    _args = (int(os.environ.pop(HEAD)),)
    threading.Thread(target=_watch, args=_args, name="headrace-guard", daemon=True).start()

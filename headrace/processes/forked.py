"""Runs the standard library's fork server as a fork of the process that starts it.

The standard library starts a new program, which imports everything again. A fork keeps the imports
and shares their memory; everything else is reset to the state of a new program.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from multiprocessing import forkserver, resource_tracker, util
from typing import Any

from headrace.processes import orphan_guard
from headrace.processes.process_tree import MARK, set_own_mark

_NAME = "forkserver"  # for top and ps
_HANDLED = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")


@contextlib.contextmanager
def instead() -> Iterator[None]:
    """Start the standard library's fork server as a fork inside the block."""
    library: Any = util
    spawn = library.spawnv_passfds

    def start(path: Any, args: list[str], passed: Sequence[int]) -> int:
        is_server = "multiprocessing.forkserver" in args[-1]  # not the resource tracker
        return _forked(path, args, passed) if is_server else spawn(path, args, passed)

    library.spawnv_passfds = start
    try:
        yield
    finally:
        library.spawnv_passfds = spawn


def _forked(path: Any, args: list[str], passed: Sequence[int]) -> int:
    """Fork; the child runs the command of these arguments and keeps these files open."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()  # otherwise both processes would write the buffer
    if pid := os.fork():
        return pid
    code = 1
    try:
        _forget(passed)
        if not set_own_mark(os.environ[MARK]):
            for number in passed:
                os.set_inheritable(number, True)
            os.execv(path, args)
        orphan_guard.begin()  # a new program does this on import
        with open("/proc/self/comm", "w", encoding="utf-8") as file:
            file.write(_NAME)
        exec(args[-1], {"__name__": "__main__"})
    except SystemExit:
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        atexit._run_exitfuncs()
        os._exit(code)


def _forget(passed: Sequence[int]) -> None:
    """Drop the parent's open files, signal handlers and exit functions."""
    atexit._clear()
    util._finalizer_registry.clear()  # type: ignore[attr-defined]
    forkserver._forkserver.__init__()  # type: ignore[attr-defined, misc]
    resource_tracker._resource_tracker.__init__()  # type: ignore[attr-defined, misc]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in _HANDLED:
        if callable(signal.getsignal(number := getattr(signal, name))):
            signal.signal(number, signal.SIG_DFL)
    for number in {int(name) for name in os.listdir("/proc/self/fd")} - {0, 1, 2, *passed}:
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed
            os.close(number)

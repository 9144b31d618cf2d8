"""Injects a fault when a process opens a file for writing; loaded at the start of each process.

The environment variable HEADRACE_FAULT is JSON. ``file`` is a part of the file's name, ``number``
counts the matching opens of a process from 1, and ``action`` has a ``value``. The first process
that reaches the fault creates the file ``mark``, so that it happens only once.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import threading
import time

_LEFT_BYTES = 100
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def _fill(seconds: float) -> None:
    """Make file writes of this process fail beyond 100 bytes, for some seconds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (_LEFT_BYTES, hard))
    restore = threading.Timer(seconds, resource.setrlimit, (resource.RLIMIT_FSIZE, (soft, hard)))
    restore.daemon = True
    restore.start()


def _hook(fault: dict) -> None:
    opens, is_over, delays = 0, False, False

    def happen() -> None:
        nonlocal delays
        action, value = fault["action"], fault["value"]
        if action == "error":
            raise OSError(value, os.strerror(value))
        if action == "clock":
            real = time.time
            time.time = lambda: real() + value
        elif action == "full":
            _fill(value)
        delays = action == "delay"

    def audit(event: str, args: tuple) -> None:
        nonlocal opens, is_over
        if event != "open" or not isinstance(args[0], str | bytes):
            return
        flags = args[2] if isinstance(args[2], int) else 0
        if not flags & _WRITES or fault["file"] not in os.path.basename(os.fsdecode(args[0])):
            return
        if delays:
            time.sleep(fault["value"])
        opens += 1
        if is_over or opens < fault["number"]:
            return
        is_over = True
        try:
            os.close(os.open(fault["mark"], os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        happen()

    sys.addaudithook(audit)


if "HEADRACE_FAULT" in os.environ:
    _hook(json.loads(os.environ["HEADRACE_FAULT"]))

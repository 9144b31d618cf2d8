"""Reports location and missing packages of headrace's processes on a Ray cluster."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class CallFailed(Exception):
    """A call of a Ray actor gave no result; the message says why, in one line."""


class Home(NamedTuple):
    """Location of a process on the cluster."""

    node: str  # host name
    pid: int
    log: str  # file of its error output

    def __str__(self) -> str:
        return f"node {self.node}, process {self.pid}, log {self.log}"


def process_class() -> type:
    """Return the base class of Ray actors.

    It is sent by value and reports its location without importing headrace, so that nodes without
    headrace raise a clear error.
    """

    class HeadraceProcess:
        def home(self) -> Any:
            """Return the fields of a :class:`Home`."""
            import importlib.util
            import os
            import socket

            if importlib.util.find_spec("headrace") is None:
                raise ModuleNotFoundError(
                    f"headrace is not installed on {socket.gethostname()}: install it on every node"
                )
            try:
                log = os.readlink("/proc/self/fd/2")
            except OSError:
                log = "unknown"
            return socket.gethostname(), os.getpid(), log

    return HeadraceProcess


def headrace_version() -> str:
    """Return the headrace version of this process."""
    return str(importlib.import_module("headrace").__version__)


def other_version(version: str, where: str) -> str:
    """Return an error message if headrace's version differs from that ``where`` it was started."""
    if (here := headrace_version()) == version:
        return ""
    return f"headrace is {here} there and {version} {where}: install the same version everywhere"


def cause_of(error: Exception) -> str:
    """Summarize one of Ray's errors in a line: its first and last line."""
    if isinstance(cause := getattr(error, "cause", None), Exception):  # raised by the call
        return f"{cause} (node {getattr(error, 'ip', 'unknown')})"
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    death_lines = [
        x for x in lines if x.startswith(("The actor died because", "The actor is dead"))
    ]
    return f"{type(error).__name__}: {' … '.join(death_lines[:1] or lines[:1] + lines[1:][-1:])}"

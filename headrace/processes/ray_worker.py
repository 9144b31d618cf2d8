"""What a process of headrace on a Ray cluster says of itself: where it is, and what it lacks."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple


class Home(NamedTuple):
    """Where a process turned out to run."""

    node: str  # host name
    pid: int
    log: str  # file of its error output

    def __str__(self) -> str:
        return f"node {self.node}, process {self.pid}, log {self.log}"


def process_class() -> type:
    """Base of what Ray runs.

    It travels by value, so it can tell where headrace can't be imported, and imports nothing of it
    to say where it is.
    """

    class HeadraceProcess:
        def home(self) -> Any:
            """What a :class:`Home` is made from."""
            import importlib.util
            import os
            import socket

            if importlib.util.find_spec("headrace") is None:
                raise ModuleNotFoundError(
                    f"headrace isn't installed on {socket.gethostname()}: install it on every node"
                )
            try:
                log = os.readlink("/proc/self/fd/2")
            except OSError:
                log = "unknown"
            return socket.gethostname(), os.getpid(), log

    return HeadraceProcess


def headrace_version() -> str:
    """Of this process."""
    return str(importlib.import_module("headrace").__version__)


def other_version(version: str, where: str) -> str:
    """What to say if this process has another headrace than there is ``where`` it was started."""
    if (here := headrace_version()) == version:
        return ""
    return f"headrace is {here} there and {version} {where}: install the same everywhere"


def not_there(error: ModuleNotFoundError) -> str:
    """What to say of a module that this process hasn't."""
    return f"{error} there: install it on every node (what your script defines travels by itself)"


def cause_of(error: Exception) -> str:
    """What one of Ray's errors says, in a line: it says first what, and last why."""
    if isinstance(cause := getattr(error, "cause", None), Exception):  # raised by the call
        return f"{cause} (node {getattr(error, 'ip', 'unknown')})"
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    known = [x for x in lines if x.startswith(("The actor died because", "The actor is dead"))]
    return f"{type(error).__name__}: {' … '.join(known[:1] or lines[:1] + lines[1:][-1:])}"

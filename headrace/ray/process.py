"""Runs objects of headrace in processes of a Ray cluster, and describes such processes."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from headrace.processes import unblock_signals_for_children


class CallFailed(Exception):
    """A call of a Ray actor gave no result; the message says why, in one line."""


class Home(NamedTuple):
    """Location of a process on the cluster."""

    node: str  # host name
    pid: int
    log: str  # file of its error output

    def __str__(self) -> str:
        return f"node {self.node}, process {self.pid}, log {self.log}"


def process_class(name: str, target: str) -> type:
    """Return a class of Ray actors, each of which runs one object of headrace.

    It is sent by value and reports its location without importing headrace, so that nodes without
    headrace raise a clear error.

    Args:
        name: name of the class, shown in lists of processes.
        target: class of the object, as in ``headrace.ray.actor:RemoteActor``.
    """

    class HeadraceProcess:
        def __init__(self) -> None:
            import threading

            self.object: Any = None
            self.problem: Any = None
            self.error: Exception | None = None  # raised by begin
            self.begun = threading.Event()

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

        def begin(self, *args: Any) -> Any:
            """Create the object; return its ``problem``, or None if it has none."""
            import importlib

            try:
                module, _, kind = target.partition(":")
                self.object = getattr(importlib.import_module(module), kind)(*args)
                self.problem = getattr(self.object, "problem", None)
                return self.problem
            except Exception as error:
                self.error = error
                raise
            finally:
                self.begun.set()

        def call(self, method: str, *args: Any) -> Any:
            """Call a method of the object, once it exists; None if it has a problem.

            Raises:
                Exception: ``begin`` raised it, or the method does.
            """
            self.begun.wait()
            if self.error is not None:
                raise self.error
            return None if self.problem else getattr(self.object, method)(*args)

    HeadraceProcess.__name__ = HeadraceProcess.__qualname__ = name
    return HeadraceProcess


def set_up_process(version: str, where: str) -> str:
    """Prepare a process of a cluster for headrace; return an error message, or "".

    Args:
        version: headrace version of the process that started it.
        where: location of that process, for the message.
    """
    import torch

    torch.set_num_threads(1)
    unblock_signals_for_children()
    if (here := headrace_version()) == version:
        return ""
    return f"headrace is {here} there and {version} {where}: install the same version everywhere"


def headrace_version() -> str:
    """Return the headrace version of this process."""
    return str(importlib.import_module("headrace").__version__)


def cause_of(error: Exception) -> str:
    """Summarize one of Ray's errors in a line: its first and last line."""
    if isinstance(cause := getattr(error, "cause", None), Exception):  # raised by the call
        return f"{cause} (node {getattr(error, 'ip', 'unknown')})"
    lines = [" ".join(line.split()) for line in str(error).splitlines() if line.strip()]
    death_lines = [
        x for x in lines if x.startswith(("The actor died because", "The actor is dead"))
    ]
    return f"{type(error).__name__}: {' … '.join(death_lines[:1] or lines[:1] + lines[1:][-1:])}"

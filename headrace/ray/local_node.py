"""Watches the processes of this machine's Ray node; if one exits, Ray kills programs there."""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
from pathlib import Path
from typing import Any

import psutil

from headrace.errors import WorkerFailed

_AGENTS = {  # endings of words in the command line, after and before the process sets its title
    "dashboard agent": ("ray::DashboardAgent", "dashboard/agent.py"),
    "runtime environment agent": ("ray::RuntimeEnvAgent", "runtime_env/agent/main.py"),
}


class LocalNode:
    """The raylet of a node on this machine, and its agents.

    A raylet shuts down about 10 ms after the death of an agent. Ray then kills each program
    that reads, writes or frees an object in its store, so call :meth:`check` first.

    Args:
        raylet_socket: path of the raylet's socket.
    """

    def __init__(self, raylet_socket: Path) -> None:
        self._logs = raylet_socket.parents[1] / "logs"
        self._names: dict[int, str] = {}  # by descriptor of the process
        self._ended: Any = None
        with contextlib.suppress(OSError, AttributeError, psutil.Error):  # unsupported, or not ours
            self._ended = select.poll()
            raylet = _server(raylet_socket)
            self._watch(raylet, "raylet")
            for process in psutil.Process(raylet).children():
                with contextlib.suppress(psutil.Error, OSError):
                    if name := _agent(process.cmdline()):
                        self._watch(process.pid, name)

    def _watch(self, pid: int, name: str) -> None:
        descriptor = os.pidfd_open(pid)  # becomes readable at its exit
        self._names[descriptor] = name
        self._ended.register(descriptor, select.POLLIN)

    def check(self) -> None:
        """Raise WorkerFailed if the raylet or one of its agents has exited."""
        if self._ended is not None and (ended := self._ended.poll(0)):
            names = sorted(self._names[descriptor] for descriptor, _ in ended)
            name, more = names[-1], ""  # the raylet, if it is among them
            if name != "raylet":
                more = ", and Ray shuts down a node without it"
            raise WorkerFailed(
                f"Ray: the {name} of this node, {socket.gethostname()}, has exited{more} (its log: "
                f"{self._logs / _LOGS[name]})"
            )

    def close(self) -> None:
        """Stop watching; safe to call twice."""
        while self._names:
            descriptor, _ = self._names.popitem()
            self._ended.unregister(descriptor)
            os.close(descriptor)


_LOGS = {
    "raylet": "raylet.out",
    "dashboard agent": "dashboard_agent.log",
    "runtime environment agent": "runtime_env_agent.log",
}


def _server(name: Path) -> int:
    """Return the id of the process that listens on a Unix socket."""
    with socket.socket(socket.AF_UNIX) as ours:
        ours.connect(str(name))
        peer = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", peer)[0])


def _agent(command: list[str]) -> str | None:
    """Return which of Ray's agents a command line starts; None for other processes."""
    for name, endings in _AGENTS.items():
        if any(word.endswith(endings) for word in command):
            return name
    return None

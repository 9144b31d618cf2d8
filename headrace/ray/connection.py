"""Connects this program to a Ray cluster; the only module that imports ``ray``."""

from __future__ import annotations

import contextlib
import functools
import importlib
import logging
import math
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from headrace import extras
from headrace.errors import ConfigError, WorkerFailed
from headrace.processes.fork_server import environment_variable
from headrace.processes.signals import handlers_kept
from headrace.ray import local_cluster
from headrace.ray.auth import connection_error, reach, require_token
from headrace.ray.local_node import LocalNode
from headrace.ray.process import CallFailed, cause_of

_LOOK_S = 4.0  # between two checks of the nodes
_REACH_S = 10.0  # timeout for the list of nodes


class RayCluster:
    """A connection to a Ray cluster, or to a new one that is started here.

    A new cluster listens only on the loopback interface, requires its token, and stops with its
    last user. Existing clusters are left running.

    Args:
        address: see ``ray.init``; None: the current connection of this program, or a new cluster.
        setting_name: setting that needs the cluster, for messages.
        num_cpus: number of CPUs that a new cluster declares.

    Raises:
        ConfigError: Ray isn't installed, or was imported without a token, or this program is
            connected to another cluster.
        WorkerFailed: the address doesn't answer, or the cluster has other versions or rejects
            this program.
    """

    _users: ClassVar[int] = 0  # users of this program's connection
    _address: ClassVar[str | None] = None  # address of that connection
    _mark: ClassVar[str] = ""  # of the processes of a cluster that was started here
    _session: ClassVar[Path | None] = None  # folder to delete at the end; None: keep the logs

    def __init__(self, address: str | None, setting_name: str, num_cpus: float) -> None:
        check_installed(setting_name)
        self._counts = False  # counted in _users
        self._where = "on this machine" if address is None else f"at {address!r}"
        if address is None and not _is_connected():
            require_token(setting_name)
        with _parent_may_end():
            self.api: Any = importlib.import_module("ray")
        self._looked = time.monotonic()
        if _is_connected():
            inside = self.api.get_runtime_context().get_actor_id() is not None
            if address not in (None, "auto", RayCluster._address) and not inside:
                raise ConfigError(
                    f"{setting_name}: address={address!r}, but this program is connected to "
                    "another Ray cluster; call ray.shutdown() before, or leave address out"
                )
            self._counts = RayCluster._users > 0
            RayCluster._users += self._counts
            return
        RayCluster._session, RayCluster._mark = self._connect(address, num_cpus)
        RayCluster._address, RayCluster._users = address or "local", 1
        self._counts = True

    @property
    def is_own(self) -> bool:
        """True if the cluster was started here."""
        return self._counts and RayCluster._address == "local"

    @functools.cached_property
    def _node(self) -> LocalNode:
        return LocalNode(local_cluster.raylet_socket(self.api))

    @functools.cached_property
    def _here(self) -> str:
        return str(self.api.get_runtime_context().get_node_id())

    def _connect(self, address: str | None, num_cpus: float) -> tuple[Path | None, str]:
        """Connect; return the session folder of a new cluster, and the mark of its processes."""
        try:
            if address is None:
                with _parent_may_end():
                    return local_cluster.start(self.api, num_cpus)
            reach(address)
            with handlers_kept(), _parent_may_end():
                self.api.init(address, log_to_driver=False, logging_level=logging.WARNING)
        except Exception as error:  # Ray raises several kinds
            words = connection_error(error, self._where, address is None)
            raise WorkerFailed(f"Ray: {words}") from error
        return None, ""

    @property
    def cores(self) -> float:
        """Number of cores of all live nodes."""
        return float(self.api.cluster_resources().get("CPU", 0))

    @property
    def free_cores(self) -> float:
        """Number of unreserved cores."""
        return float(self.api.available_resources().get("CPU", 0))

    @property
    def this_node(self) -> str:
        """Name of a resource that only this node has."""
        [mine] = [node for node in self.api.nodes() if node["NodeID"] == self._here]
        return f"node:{mine['NodeManagerAddress']}"

    def room(self, cores: float, gpus: float) -> float:
        """Return how many processes with these resources fit on otherwise empty nodes."""
        request = {kind: round(1e4 * n) for kind, n in (("CPU", cores), ("GPU", gpus)) if n}
        nodes = [x["Resources"] for x in self.api.nodes() if x["Alive"]]
        each = [[round(1e4 * x.get(kind, 0)) // n for kind, n in request.items()] for x in nodes]
        return sum(min(one, default=math.inf) for one in each)

    def share(self, count: int) -> float:
        """Return the largest part of a core, at most 1, with which ``count`` processes fit."""
        nodes = [x["Resources"].get("CPU", 0.0) for x in self.api.nodes() if x["Alive"]]
        return shared(nodes, count)

    def check_here(self) -> None:
        """Raise WorkerFailed if this node is ending; see :class:`LocalNode`."""
        try:
            self._node.check()
        except WorkerFailed:
            RayCluster._session = None
            raise

    def check(self) -> bool:
        """Check that the cluster is alive, at most every few seconds; return True if checked.

        Raises:
            WorkerFailed: all nodes or this node are dead, or the head node doesn't answer.
        """
        self.check_here()
        if time.monotonic() - self._looked < _LOOK_S:
            return False
        nodes = _within(self.api.nodes, _REACH_S)
        self._looked = time.monotonic()
        if nodes is None:
            raise WorkerFailed(
                f"Ray: the head node of the cluster {self._where} didn't answer for {_REACH_S:g} s "
                f"(this node: {socket.gethostname()})"
            )
        lost = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes if not node["Alive"]}
        if len(lost) == len(nodes):
            names = ", ".join(sorted(set(lost.values())))
            raise WorkerFailed(
                f"Ray: every node of the cluster is dead (the raylets of {names} have exited)"
            )
        if self._here in lost:
            raise WorkerFailed(
                f"Ray: the cluster has lost this node (the raylet of {lost[self._here]} has "
                "exited, or the head node could not reach it)"
            )
        return True

    def kind(self, process: type, **options: Any) -> Any:
        """Return the Ray actor class of a process, which Ray never restarts by itself."""
        return self.api.remote(max_restarts=0, max_task_retries=0, **options)(process)

    def arrived(self, refs: list[Any], timeout_s: float) -> list[Any]:
        """Return the references whose results have arrived, or wait for the first."""
        if not refs:
            time.sleep(timeout_s)
            return []
        ready, _ = self.api.wait(refs, num_returns=len(refs), timeout=0)
        if not ready and timeout_s > 0:
            ready, _ = self.api.wait(refs, num_returns=1, timeout=timeout_s)
        return list(ready)

    def result(self, ref: Any, timeout_s: float) -> Any:
        """Return the result of a call, or the results of several.

        Raises:
            CallFailed: the call raised, its process has died, or no result arrived in time.
        """
        errors = self.api.exceptions
        try:
            return self.api.get(ref, timeout=timeout_s)
        except (errors.RayError, errors.GetTimeoutError) as error:
            RayCluster._session = None  # its message may refer to a log
            raise CallFailed(cause_of(error)) from error

    def end(self, actors: list[Any], places: Any) -> None:
        """Kill Ray actors and remove a placement group, if the cluster still answers."""

        def end_all() -> None:
            for actor in actors:
                self.api.kill(actor, no_restart=True)
            if places is not None:
                self.api.util.remove_placement_group(places)

        if self.api.is_initialized():
            _within(end_all, _REACH_S)

    def close(self) -> None:
        """Disconnect, and stop the cluster if it was started here; safe to call twice.

        Other users in this program stay connected.
        """
        if self._counts:
            self._counts = False
            RayCluster._users -= 1
            if RayCluster._users == 0:
                RayCluster._address = None
                local_cluster.end(self.api, RayCluster._session, RayCluster._mark)
        node: LocalNode | None = self.__dict__.pop("_node", None)
        if node is not None:
            node.close()


def _parent_may_end() -> contextlib.AbstractContextManager[None]:
    """Return a context for importing Ray and connecting to a cluster.

    When the raylet exits, Ray also kills this program if it takes the raylet for its parent. That
    happens if ``RAY_RAYLET_PID`` is unset and the parent is process 1, as after ``nohup`` or in a
    container.
    """
    return environment_variable("RAY_RAYLET_PID", str(os.getpid()))


def check_installed(setting_name: str) -> None:
    """Raise ConfigError, naming the setting that needs it, unless Ray can be imported."""
    extras.require(setting_name, "ray", "ray")


def connect(cluster: str, num_cpus: float) -> RayCluster:
    """Connect to the cluster of a run's setting ``cluster``, "ray" or "ray:ADDRESS"."""
    return RayCluster(cluster.partition(":")[2] or None, f"cluster={cluster!r}", num_cpus)


def cores_there(cluster: str) -> int | None:
    """Return the number of cores of a running cluster; None before it is started.

    See :func:`connect` for the argument and errors.
    """
    if cluster == "ray" and not _is_connected():
        return None
    with contextlib.closing(connect(cluster, 1)) as connection:
        return max(1, int(connection.cores))


def shared(nodes: list[float], count: int) -> float:
    """Return the largest part of a core, at most 1, of which ``count`` fit on these nodes.

    It is a multiple of 1e-4, Ray's resolution; 1 if there are no cores yet.
    """
    share, parts = 10_000, [round(1e4 * cores) for cores in nodes]
    while share and sum(cores // share for cores in parts) < count:
        share = min(share - 1, max((x // (x // share + 1) for x in parts), default=0))
    return share / 1e4 if share else 1.0


def node_address() -> str:
    """Return the address of this process's node of a cluster."""
    return str(importlib.import_module("ray").util.get_node_ip_address())


def fetch(ref: Any, timeout_s: float) -> Any:
    """Get the value of an object reference, in a process of a cluster.

    Raises:
        Exception: one of Ray's errors, including its timeout.
    """
    return importlib.import_module("ray").get(ref, timeout=timeout_s)


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _within(call: Callable[[], Any], seconds: float) -> Any:
    """Return the result of a call; None if it raises, or takes longer."""
    results: list[Any] = []

    def run() -> None:
        with contextlib.suppress(Exception):
            results.append(call())

    thread = threading.Thread(target=run, name="headrace-look", daemon=True)
    thread.start()
    thread.join(seconds)
    return results[0] if results else None

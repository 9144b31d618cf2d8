"""This program's connection to a Ray cluster; ``ray`` is imported here and nowhere else."""

from __future__ import annotations

import contextlib
import functools
import importlib
import importlib.util
import logging
import math
import os
import select
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

from headrace.errors import ConfigError, WorkerFailed
from headrace.processes.fork_server import marked
from headrace.processes.ray_auth import close_doors, reach, why_not
from headrace.processes.signals import handlers_kept

# With these, a node counts as dead after 4 * (1 + 2) s of silence, not 80; Ray's system config.
HEALTH = {
    "health_check_initial_delay_ms": 5_000,
    "health_check_period_ms": 1_000,
    "health_check_timeout_ms": 2_000,
    "health_check_failure_threshold": 4,
}
_LOOK_S = 4.0  # between two looks at which nodes live
_REACH_S = 10.0  # for a cluster to say which nodes it has


class RayCluster:
    """A Ray cluster; left as it was found, except for one that is started here.

    That one listens on the loopback interface only, to who has its token, and ends with the last
    who uses it.

    Args:
        address: as ``ray.init`` takes it; None: what this program is connected to, or a new one.
        asker: the setting that asks for it, for messages.
        num_cpus: what one that is started here says that it has.

    Raises:
        ConfigError: Ray isn't installed, or was imported without a token, or this program is
            connected to another cluster.
        WorkerFailed: nothing answers at this address, or it has other versions, or doesn't let
            this program in.
    """

    _users: ClassVar[int] = 0  # of the connection that the first of them made
    _address: ClassVar[str | None] = None  # which that one asked for

    def __init__(self, address: str | None, asker: str, num_cpus: float) -> None:
        check_installed(asker)
        self._counts = False  # among those
        self._where = "on this machine" if address is None else f"at {address!r}"
        if address is None and not _is_connected():
            close_doors(asker)
        self.api: Any = importlib.import_module("ray")
        self._looked = time.monotonic()
        if _is_connected():
            inside = self.api.get_runtime_context().get_actor_id() is not None
            if address not in (None, "auto", RayCluster._address) and not inside:
                raise ConfigError(
                    f"{asker}: address={address!r}, but this program is connected to a Ray "
                    "cluster already; call ray.shutdown() before, or leave address out"
                )
            self._counts = RayCluster._users > 0
            RayCluster._users += self._counts
            return
        settings: dict[str, Any] = {"address": address or "local", "log_to_driver": False}
        if address is None:
            settings |= {
                "num_cpus": math.ceil(max(1.0, num_cpus)),
                "include_dashboard": False,
                "_system_config": dict(HEALTH),  # Ray adds to it
            }
        self._connect(settings)
        RayCluster._address, RayCluster._users = settings["address"], 1
        self._counts = True

    @property
    def is_own(self) -> bool:
        """Whether it was started here, and so has what this program asked for and no more."""
        return self._counts and RayCluster._address == "local"

    @functools.cached_property
    def _raylet(self) -> tuple[int | None, Path]:
        """Of this node: a descriptor that is readable once it has ended, if that works; its log."""
        name = next(x["RayletSocketName"] for x in self.api.nodes() if x["NodeID"] == self._here)
        log = Path(name).parents[1] / "logs" / "raylet.out"
        with contextlib.suppress(OSError, AttributeError), socket.socket(socket.AF_UNIX) as ours:
            ours.connect(name)
            peer = ours.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            return os.pidfd_open(struct.unpack("3i", peer)[0]), log
        return None, log

    @functools.cached_property
    def _here(self) -> str:
        return str(self.api.get_runtime_context().get_node_id())

    def _connect(self, settings: dict[str, Any]) -> None:
        local = settings["address"] == "local"
        try:
            reach(settings["address"])
            with handlers_kept(), marked() if local else contextlib.nullcontext():
                self.api.init(logging_level=logging.WARNING, **settings)
        except Exception as error:  # Ray raises several kinds
            raise WorkerFailed(f"Ray: {why_not(error, self._where, local)}") from error

    @property
    def cores(self) -> float:
        """Of all nodes that live."""
        return float(self.api.cluster_resources().get("CPU", 0))

    @property
    def free_cores(self) -> float:
        """Those that nobody has asked for."""
        return float(self.api.available_resources().get("CPU", 0))

    @property
    def this_node(self) -> str:
        """The name of a resource that only this node has."""
        [mine] = [node for node in self.api.nodes() if node["NodeID"] == self._here]
        return f"node:{mine['NodeManagerAddress']}"

    def room(self, cores: float, gpus: float) -> float:
        """How many processes that ask for so much its nodes hold, if nobody else does."""
        asked = {kind: round(1e4 * n) for kind, n in (("CPU", cores), ("GPU", gpus)) if n}
        nodes = [x["Resources"] for x in self.api.nodes() if x["Alive"]]
        each = [[round(1e4 * x.get(kind, 0)) // n for kind, n in asked.items()] for x in nodes]
        return sum(min(one, default=math.inf) for one in each)

    def share(self, count: int) -> float:
        """The part of a core, 1 at most, that ``count`` processes can have each where they fit."""
        nodes = [x["Resources"].get("CPU", 0.0) for x in self.api.nodes() if x["Alive"]]
        return shared(nodes, count)

    def check_here(self) -> None:
        """Raise WorkerFailed if this node's raylet has ended.

        Ray ends a process that touches the object store then, so look before you do.
        """
        raylet, log = self._raylet
        if raylet is not None and select.select([raylet], [], [], 0)[0]:
            name = socket.gethostname()
            raise WorkerFailed(f"Ray: the raylet of this node, {name}, has ended (its log: {log})")

    def check(self) -> bool:
        """Look whether the cluster lives, unless that was done a moment ago; whether it was not.

        Raises:
            WorkerFailed: no node lives, or this one doesn't, or the head node is silent.
        """
        self.check_here()
        if time.monotonic() - self._looked < _LOOK_S:
            return False
        nodes = _within(self.api.nodes, _REACH_S)
        self._looked = time.monotonic()
        if nodes is None:
            raise WorkerFailed(
                f"Ray: the head node of the cluster {self._where} gave no answer in {_REACH_S:g} s "
                f"(this node: {socket.gethostname()})"
            )
        lost = {node["NodeID"]: node["NodeManagerHostname"] for node in nodes if not node["Alive"]}
        if len(lost) == len(nodes):
            names = ", ".join(sorted(set(lost.values())))
            raise WorkerFailed(
                f"Ray: every node of the cluster is dead (the raylets of {names} have ended)"
            )
        if self._here in lost:
            raise WorkerFailed(
                f"Ray: this node is lost to the cluster (the raylet of {lost[self._here]} has "
                "ended, or the head node could not reach it)"
            )
        return True

    def end(self, actors: list[Any], places: Any) -> None:
        """Kill Ray actors, and give back a placement group, as far as the cluster still answers."""

        def end_all() -> None:
            for actor in actors:
                self.api.kill(actor, no_restart=True)
            if places is not None:
                self.api.util.remove_placement_group(places)

        if self.api.is_initialized():
            _within(end_all, _REACH_S)

    def close(self) -> None:
        """Leave the cluster, and end it if it was started here; safe to call twice.

        Others in this program who use it stay connected.
        """
        if self._counts:
            self._counts = False
            RayCluster._users -= 1
            if RayCluster._users == 0:
                RayCluster._address = None
                self.api.shutdown()
        raylet, _ = self.__dict__.pop("_raylet", (None, None))
        if raylet is not None:
            os.close(raylet)


def check_installed(asker: str) -> None:
    """Raise ConfigError, for the setting that asks, unless Ray can be imported."""
    if importlib.util.find_spec("ray") is None:
        raise ConfigError(f"{asker} needs Ray, which isn't installed (pip install 'headrace[ray]')")


def cores_there(address: str | None, asker: str) -> int | None:
    """Cores of a cluster that runs, all nodes together; None: there is none before it is started.

    Args: as of :class:`RayCluster`, which says what it raises.
    """
    if address is None and not _is_connected():
        return None
    with contextlib.closing(RayCluster(address, asker, 1)) as cluster:
        return max(1, int(cluster.cores))


def shared(nodes: list[float], count: int) -> float:
    """The part of a core, 1 at most, of which ``count`` fit on nodes of so many cores.

    It is a multiple of 1e-4, as Ray's are; 1 where there are no cores yet.
    """
    share, parts = 10_000, [round(1e4 * cores) for cores in nodes]
    while share and sum(cores // share for cores in parts) < count:
        share = min(share - 1, max((x // (x // share + 1) for x in parts), default=0))
    return share / 1e4 if share else 1.0


def node_address() -> str:
    """Of the node of a cluster that this process is on."""
    return str(importlib.import_module("ray").util.get_node_ip_address())


def fetch(ref: Any, timeout_s: float) -> Any:
    """What an object reference stands for, in a process of a cluster.

    Raises:
        Exception: one of Ray's, also if it isn't there in time.
    """
    return importlib.import_module("ray").get(ref, timeout=timeout_s)


def _is_connected() -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and ray.is_initialized()


def _within(call: Callable[[], Any], seconds: float) -> Any:
    """What a call returns; None if it raises, or takes longer."""
    found: list[Any] = []

    def ask() -> None:
        with contextlib.suppress(Exception):
            found.append(call())

    asking = threading.Thread(target=ask, name="headrace-look", daemon=True)
    asking.start()
    asking.join(seconds)
    return found[0] if found else None

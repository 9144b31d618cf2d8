"""Runs several learners on a Ray cluster, spread over its nodes.

this process ──► learner 0, on this node (files, results) ──► its actors, anywhere
     │     ╲───► learner 1, on another ──► its actors         all joined by headrace/distributed
     └── Ray calls: ``receive`` returns results and heartbeats, ``send`` sends commands

The first learner runs on this node and writes the run directory here; it reserves no core, like a
single learner. Ray stops all learners when this process exits, for whatever reason.
"""

from __future__ import annotations

import contextlib
import os
import queue
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil

from headrace.config import Config
from headrace.distributed.ranks import Rendezvous
from headrace.errors import LearnerFailed
from headrace.launch.learner import learn
from headrace.ray.connection import connect, node_address
from headrace.ray.process import (
    CallFailed,
    Home,
    headrace_version,
    process_class,
    set_up_process,
)
from headrace.ray.store import RayStore, store_class

_RECEIVE_S = 1.0  # longest wait of a call for messages


class RemoteLearner:
    """A learner in a Ray actor's process, and its messages and commands."""

    def __init__(self) -> None:
        self._messages: queue.Queue[Any] = queue.Queue()
        self._commands: queue.Queue[Any] = queue.Queue()

    def run(self, *args: Any) -> bool:
        """Run the learner, see :func:`run`."""
        return run(self._messages.put, self._commands.get, *args)

    def receive(self, timeout_s: float) -> list[Any]:
        """Return the messages so far, or wait for the first."""
        messages = []
        with contextlib.suppress(queue.Empty):
            messages.append(self._messages.get(timeout=timeout_s))
            while True:
                messages.append(self._messages.get_nowait())
        return messages

    def send(self, *command: Any) -> None:
        """Queue a command for the learner."""
        self._commands.put(command)


def run(
    send: Any,
    receive: Any,
    version: str,
    pickled: bytes,
    placement: tuple[int, int, int, int],
    store: Any,
    folder: str,
) -> bool:
    """Run a learner in its process; see :func:`learn`.

    Args:
        version: headrace version where the run was started.
        placement: rank, number of learners, local rank on this node, their number here.
        store: Ray actor that holds the rendezvous store.
        folder: working directory of the run, for relative paths of the first learner.
    """
    if words := set_up_process(version, "where the run was started"):
        send(("failed", "ConfigError", words, ""))
        return False
    rank, size, local_rank, num_here = placement
    os.environ["LOCAL_WORLD_SIZE"] = str(num_here)
    if name := _interface(node_address()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # "=": exact name
    if rank == 0:
        os.chdir(folder)
    rendezvous = RayStore(store)  # torch does not keep it alive

    def opened(timeout_s: float) -> RayStore:
        rendezvous.set_timeout(timedelta(seconds=timeout_s))
        return rendezvous

    return learn(pickled, Rendezvous(rank, size, local_rank, opened), send, receive)


def _interface(address: str) -> str | None:
    """Return the network interface with this address; None if unknown."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(one.address == address for one in addresses):
            return name
    return None


class ClusterLearners:
    """One generation of learners as Ray actors; see :class:`~headrace.launch.learners.Learners`.

    Args:
        config: settings of the run.
        pickled: argument of :func:`learn`.
        stopped: returns True to stop waiting for resources.

    Raises:
        KeyboardInterrupt: ``stopped()`` returned True.
        ConfigError, WorkerFailed: see :func:`connect`.
        LearnerFailed: the cluster lacks resources, or a learner never started.
    """

    def __init__(self, config: Config, pickled: bytes, stopped: Callable[[], bool]) -> None:
        self._cluster = connect(str(config.cluster), config.num_places)
        self._ray, self._config, self._stopped = self._cluster.api, config, stopped
        self._learners: list[Any] = []
        self._pending: dict[Any, int] = {}
        self._causes: dict[int, str] = {}
        self._group: Any = None
        try:
            self._place()
            self._begin(pickled)
        except BaseException:
            self.close()
            raise

    def _place(self) -> None:
        """Reserve resources for each learner, on as many nodes as possible."""
        config, cluster = self._config, self._cluster
        share, gpus = cluster.share(config.num_places), int(config.device == "cuda")
        device = {"GPU": gpus} if gpus else {}
        places = [{cluster.this_node: 0.001, **device}]
        places += [{"CPU": share, **device} for _ in range(1, config.num_learners)]
        self._group = self._ray.util.placement_group(places, strategy="SPREAD")
        deadline = time.monotonic() + config.actor_timeout_s
        while not self._group.wait(1.0):
            self._check_running()
            if time.monotonic() > deadline:
                raise LearnerFailed(
                    f"the Ray cluster had no resources for {config.num_learners} learners in "
                    f"{config.actor_timeout_s:g} s (actor_timeout_s): {cluster.free_cores:g} of "
                    f"its {cluster.cores:g} cores are free"
                    + (", and each learner needs a GPU" if gpus else "")
                    + "; add nodes, or lower num_learners"
                )
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        process = process_class("HeadraceLearner", "headrace.ray.learners:RemoteLearner")
        kind = cluster.kind(process, concurrency_groups={"say": 1, "listen": 1})
        for rank in range(config.num_learners):
            there = strategy(self._group, placement_group_bundle_index=rank)
            resources = {"num_cpus": share if rank else 0, "num_gpus": gpus}
            self._learners.append(kind.options(scheduling_strategy=there, **resources).remote())

    def _begin(self, pickled: bytes) -> None:
        ray, limit_s = self._ray, self._config.actor_timeout_s
        holder = ray.remote(num_cpus=0, resources={self._cluster.this_node: 0.001})(store_class())
        store, size = holder.remote(), self._config.num_learners
        home_refs = [one.home.remote() for one in self._learners]
        self._homes: list[Home] = []
        deadline = time.monotonic() + limit_s
        while len(ray.wait(home_refs, num_returns=len(home_refs), timeout=1.0)[0]) < len(home_refs):
            self._check_running()
            if time.monotonic() > deadline:
                break
        for rank, ref in enumerate(home_refs):
            try:
                self._homes.append(Home(*self._cluster.result(ref, 0)))
            except CallFailed as failure:
                raise LearnerFailed(f"learner {rank} didn't start: {failure}") from failure
        nodes = [one.node for one in self._homes]
        content, started_on, folder = ray.put(pickled), Counter[str](), os.getcwd()
        self._runs = []
        for rank, (one, node) in enumerate(zip(self._learners, nodes, strict=True)):
            placement = rank, size, started_on[node], nodes.count(node)
            started_on[node] += 1
            one.begin.remote()
            self._runs.append(
                one.call.remote("run", headrace_version(), content, placement, store, folder)
            )
            self._request_messages(rank)
        self._store = store  # Ray stops it with its last reference

    def _check_running(self) -> None:
        self._cluster.check()
        if self._stopped():
            raise KeyboardInterrupt

    def _request_messages(self, rank: int) -> None:
        call = self._learners[rank].call.options(concurrency_group="say")
        self._pending[call.remote("receive", _RECEIVE_S)] = rank

    def receive(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
        self._cluster.check()
        received: list[tuple[int, tuple[Any, ...]]] = []
        for ref in self._cluster.arrived(list(self._pending), timeout_s):
            rank = self._pending.pop(ref)
            try:
                messages = self._cluster.result(ref, timeout_s + _RECEIVE_S)
            except CallFailed as failure:
                self._causes[rank] = str(failure)
                received.append((rank, ("gone",)))
                continue
            received += [(rank, message) for message in messages or ()]
            self._request_messages(rank)
        return received

    def send(self, rank: int, command: str, *arguments: Any) -> None:
        call = self._learners[rank].call.options(concurrency_group="listen")
        call.remote("send", command, *arguments)

    def name(self, rank: int) -> str:
        return f"learner {rank} ({self._homes[rank]})"

    def how_ended(self, rank: int) -> str:
        return f"has died: {self._causes[rank]}"

    def pids(self) -> list[int]:
        return [one.pid for one in self._homes]

    def wait(self, timeout_s: float) -> None:
        self._ray.wait(self._runs, num_returns=len(self._runs), timeout=timeout_s)

    def close(self) -> None:
        self._cluster.end(self._learners, self._group)
        self._learners, self._group = [], None
        self._cluster.close()

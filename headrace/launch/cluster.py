"""The processes of several learners on a Ray cluster, spread over its nodes.

this process ──► learner 0, on this node (files, results) ──► its actors, anywhere
     │     ╲───► learner 1, on another ──► its actors         all joined by headrace/distributed
     └── calls of Ray: ``hear`` brings results and heartbeats, ``tell`` a word

The first learner stays on this node, whose run directory it writes; it has no core of Ray's, as
the learner of a run that has one. Ray ends them all with this process, however that ends.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from headrace.config import Config
from headrace.distributed.ranks import Rendezvous
from headrace.errors import LearnerFailed
from headrace.launch.learner import learn
from headrace.launch.ray_store import RayStore, store_class
from headrace.processes import unblock_signals_for_children
from headrace.processes.ray_connection import RayCluster, node_address
from headrace.processes.ray_worker import (
    Home,
    cause_of,
    headrace_version,
    other_version,
    process_class,
)

_HEAR_S = 1.0  # how long a learner waits for something to say
_SIOCGIFADDR = 0x8915


def learner_class() -> type:
    """What Ray runs."""

    class HeadraceLearner(process_class()):  # type: ignore[misc]
        def __init__(self) -> None:
            import queue

            self.said: Any = queue.Queue()
            self.words: Any = queue.Queue()

        def run(self, *args: Any) -> bool:
            from headrace.launch import cluster

            return cluster.run(self.said.put, self.words.get, *args)

        def hear(self, timeout_s: float) -> list[Any]:
            import queue

            messages = []
            try:
                messages.append(self.said.get(timeout=timeout_s))
                while True:
                    messages.append(self.said.get_nowait())
            except queue.Empty:
                return messages

        def tell(self, *words: Any) -> None:
            self.words.put(words)

    return HeadraceLearner


def run(
    send: Any,
    hear: Any,
    version: str,
    pickled: bytes,
    met: tuple[int, int, int, int],
    store: Any,
    folder: str,
) -> bool:
    """Be a learner, in its process; see :func:`learn`.

    Args:
        version: of headrace where it was started.
        met: rank, number of learners, rank among those of this node, their number.
        store: the actor that holds what learners meet through.
        folder: where the run was started, which the first learner's paths begin at.
    """
    if words := other_version(version, "where the run was started"):
        send(("failed", "ConfigError", words, ""))
        return False
    rank, size, local_rank, num_here = met
    os.environ["LOCAL_WORLD_SIZE"] = str(num_here)
    if name := _interface(node_address()):
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={name}")  # not all that begin so
    torch.set_num_threads(1)
    unblock_signals_for_children()
    if rank == 0:
        os.chdir(folder)
    meeting = RayStore(store)  # which torch does not keep alive

    def opened(timeout_s: float) -> RayStore:
        meeting.set_timeout(timedelta(seconds=timeout_s))
        return meeting

    return learn(pickled, Rendezvous(rank, size, local_rank, opened), send, hear)


def _interface(address: str) -> str | None:
    """The network interface that has this IPv4 address; None: it isn't known."""
    with contextlib.suppress(OSError, ImportError), socket.socket(type=socket.SOCK_DGRAM) as one:
        from fcntl import ioctl  # where there is one

        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):  # it has no address
                asked = struct.pack("256s", name.encode()[:15])
                if socket.inet_ntoa(ioctl(one, _SIOCGIFADDR, asked)[20:24]) == address:
                    return name
    return None


class ClusterLearners:
    """One life of the learners, as Ray actors; see :class:`~headrace.launch.group.Learners`.

    Args:
        config: of the run. pickled: what :func:`learn` takes.
        stopped: whether to wait no longer for a place.

    Raises:
        KeyboardInterrupt: it has been stopped.
        ConfigError, WorkerFailed: see :class:`RayCluster`.
        LearnerFailed: there is no room for them, or one of them never began.
    """

    def __init__(self, config: Config, pickled: bytes, stopped: Callable[[], bool]) -> None:
        asked = str(config.cluster)
        where = asked.partition(":")[2] or None, f"cluster={asked!r}"
        self._cluster = RayCluster(*where, config.num_places)
        self._ray, self._config, self._stopped = self._cluster.api, config, stopped
        self._learners: list[Any] = []
        self._hearing: dict[Any, int] = {}
        self._causes: dict[int, str] = {}
        self._group: Any = None
        try:
            self._place()
            self._begin(pickled)
        except BaseException:
            self.close()
            raise

    def _place(self) -> None:
        """Keep a place for each, on as many nodes as can be; wait for those that are to come."""
        config, cluster = self._config, self._cluster
        share, gpus = cluster.share(config.num_places), int(config.device == "cuda")
        device = {"GPU": gpus} if gpus else {}
        places = [{cluster.this_node: 0.001, **device}]
        places += [{"CPU": share, **device} for _ in range(1, config.num_learners)]
        self._group = self._ray.util.placement_group(places, strategy="SPREAD")
        deadline = time.monotonic() + config.actor_timeout_s
        while not self._group.wait(1.0):
            self._look()
            if time.monotonic() > deadline:
                raise LearnerFailed(
                    f"the Ray cluster had no room for {config.num_learners} learners in "
                    f"{config.actor_timeout_s:g} s (actor_timeout_s): of its {cluster.cores:g} "
                    f"cores {cluster.free_cores:g} are free"
                    + (", and each learner needs a GPU" if gpus else "")
                    + "; add nodes, or lower num_learners"
                )
        strategy = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        kind = self._ray.remote(
            max_restarts=0, max_task_retries=0, concurrency_groups={"say": 1, "listen": 1}
        )(learner_class())
        for rank in range(config.num_learners):
            there = strategy(self._group, placement_group_bundle_index=rank)
            asks = {"num_cpus": share if rank else 0, "num_gpus": gpus}
            self._learners.append(kind.options(scheduling_strategy=there, **asks).remote())

    def _begin(self, pickled: bytes) -> None:
        ray, limit_s = self._ray, self._config.actor_timeout_s
        holder = ray.remote(num_cpus=0, resources={self._cluster.this_node: 0.001})(store_class())
        store, size = holder.remote(), self._config.num_learners
        asked = [one.home.remote() for one in self._learners]
        self._homes: list[Home] = []
        deadline = time.monotonic() + limit_s
        while len(ray.wait(asked, num_returns=len(asked), timeout=1.0)[0]) < len(asked):
            self._look()
            if time.monotonic() > deadline:
                break
        for rank, ref in enumerate(asked):
            try:
                self._homes.append(Home(*ray.get(ref, timeout=0)))
            except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
                raise LearnerFailed(f"learner {rank} didn't begin: {cause_of(error)}") from error
        nodes = [one.node for one in self._homes]
        content, seen = ray.put(pickled), Counter[str]()
        self._runs = []
        for rank, (one, node) in enumerate(zip(self._learners, nodes, strict=True)):
            met = rank, size, seen[node], nodes.count(node)
            seen[node] += 1
            self._runs.append(one.run.remote(headrace_version(), content, met, store, os.getcwd()))
            self._listen_to(rank)
        self._store = store  # it ends with the last who knows it

    def _look(self) -> None:
        self._cluster.check()
        if self._stopped():
            raise KeyboardInterrupt

    def _listen_to(self, rank: int) -> None:
        call = self._learners[rank].hear.options(concurrency_group="say")
        self._hearing[call.remote(_HEAR_S)] = rank

    def hear(self, timeout_s: float) -> list[tuple[int, tuple[Any, ...]]]:
        self._cluster.check()
        refs, heard = list(self._hearing), list[tuple[int, tuple[Any, ...]]]()
        ready, _ = self._ray.wait(refs, num_returns=len(refs), timeout=0) if refs else ([], None)
        if refs and not ready:
            ready, _ = self._ray.wait(refs, num_returns=1, timeout=timeout_s)
        elif not refs:
            time.sleep(timeout_s)
        for ref in ready:
            rank = self._hearing.pop(ref)
            try:
                messages = self._ray.get(ref, timeout=timeout_s + _HEAR_S)
            except (self._ray.exceptions.RayError, self._ray.exceptions.GetTimeoutError) as error:
                self._causes[rank] = cause_of(error)
                heard.append((rank, ("gone",)))
                continue
            heard += [(rank, message) for message in messages]
            self._listen_to(rank)
        return heard

    def tell(self, rank: int, word: str, *arguments: Any) -> None:
        call = self._learners[rank].tell.options(concurrency_group="listen")
        call.remote(word, *arguments)

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

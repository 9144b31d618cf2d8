"""Learners that torchrun started, on one machine or several.

torchrun's agent holds a store that outlives the learners, so it knows what earlier ones have done:
a learner that was started again must neither meet its dead predecessors there, nor be told that
the run directory which they began exists already.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import os
import time
import uuid
from pathlib import Path

import torch.distributed as dist

from headrace.config import Config
from headrace.distributed.ranks import Ranks, Rendezvous, learners, within
from headrace.errors import ConfigError, LearnerFailed
from headrace.records import checkpoint
from headrace.types import Group

_POLL_S = 0.02


def join_torchrun(config: Config) -> tuple[Config, Group | None]:
    """The group of the processes that torchrun started, and the config with their number.

    After torchrun has started its processes again, a run that names its directory goes on from
    its latest checkpoint, or begins anew if there is none yet.

    Raises:
        ConfigError: ``num_learners`` is neither 1 nor their number.
        CheckpointError: the run directory exists, and not because of this run.
        LearnerFailed: one of them never arrived.
    """
    met = torchrun_rendezvous()
    if met is None:
        return config, None
    if config.num_learners not in (1, met.size):
        raise ConfigError(
            f"num_learners={config.num_learners} must be the number of processes that torchrun "
            f"started (nearest: {met.size}), or be left out"
        )
    config = dataclasses.replace(config, num_learners=met.size)
    if met.size == 1:
        return config, None
    store = met.store(config.learner_timeout_s)
    prefix = _meet(store, met.rank, met.size, config.learner_timeout_s)
    met = dataclasses.replace(met, store=lambda _: dist.PrefixStore(prefix, store))
    group = Ranks(met, config.learner_timeout_s, config.device)
    if group.rank == 0 and config.run_dir is not None:
        config = _begun(config, config.run_dir, store)
    resume, overwrite = group.broadcast((config.resume, config.overwrite))
    return dataclasses.replace(config, resume=resume, overwrite=overwrite), group


def _begun(config: Config, run_dir: str, store: dist.Store) -> Config:
    """How rank 0 goes on with a run that it, or an earlier start of it, has begun."""
    key = f"begun/{os.path.abspath(run_dir)}"
    if store.check([key]):
        saved = (Path(run_dir) / "checkpoints" / "latest").exists()
        return dataclasses.replace(config, resume=saved, overwrite=not saved)
    checkpoint.prepare(Path(run_dir), config.resume, config.overwrite)
    store.set(key, "")
    return dataclasses.replace(config, overwrite=False)


def torchrun_rendezvous() -> Rendezvous | None:
    """Where the others are if torchrun (or what sets the same variables) started this process."""
    names = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    if not all(name in os.environ for name in names):
        return None
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def store(timeout_s: float) -> dist.Store:
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        agent_holds_it = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        try:
            tcp = dist.TCPStore(
                host,
                port,
                None,
                rank == 0 and not agent_holds_it,
                datetime.timedelta(seconds=timeout_s),
                wait_for_workers=False,
            )
        except RuntimeError as error:
            raise LearnerFailed(
                f"learner {rank} of {size} could not reach the rendezvous of learner 0 at "
                f"{host}:{port} within {timeout_s:g} s: {error}"
            ) from error
        return dist.PrefixStore("headrace", tcp)

    return Rendezvous(rank, size, int(os.environ.get("LOCAL_RANK", rank)), store)


def _meet(store: dist.Store, rank: int, size: int, timeout_s: float) -> str:
    """A name for the meeting of these very processes, the same for all of them.

    Rank 0 names it; the others sign in; it writes the list of those who did. One that finds itself
    on no list is waiting for a rank 0 that has yet to be started. (torchrun's own count of restarts
    is not the same on all machines.)

    Raises:
        LearnerFailed: one of them never arrived; it is named.
    """
    mine, deadline = uuid.uuid4().hex, time.monotonic() + timeout_s
    missing = [0]

    def look() -> str | None:
        nonlocal missing
        if rank == 0:
            store.set("meeting", mine)
        elif not store.check(["meeting"]):
            return None
        name = store.get("meeting").decode()
        signed, listed = [f"{name}/signed/{r}" for r in range(size)], f"{name}/listed"
        store.set(signed[rank], mine)
        if store.check([listed]):
            missing = [0]
            return name if mine in store.get(listed).decode().split() else None
        missing = [r for r in range(size) if not store.check([signed[r]])]
        if rank == 0 and not missing:
            store.set(listed, " ".join(store.get(key).decode() for key in signed))
        return None

    with contextlib.suppress(RuntimeError):  # a store that is gone: rank 0 never arrived
        while time.monotonic() < deadline:
            name = within(deadline - time.monotonic(), look)
            if name is not None:
                return name
            time.sleep(_POLL_S)
    raise LearnerFailed(
        f"{learners(missing or [0])} of {size} never arrived: learner {rank} waited "
        f"{timeout_s:g} s (learner_timeout_s)"
    )

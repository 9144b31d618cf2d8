"""Learners that torchrun started, on one machine or several.

torchrun's agent holds a store that outlives the learners, so it knows what earlier ones have done:
a learner that was started again must neither meet its dead predecessors there, nor be told that
the run directory which they began exists already.
"""

from __future__ import annotations

import dataclasses
import datetime
import os
from pathlib import Path

import torch.distributed as dist

from headrace.config import Config
from headrace.distributed.ranks import Ranks, Rendezvous
from headrace.errors import ConfigError, LearnerFailed, require
from headrace.rundir import checkpoint, directories
from headrace.types import Group


def join_torchrun(config: Config) -> tuple[Config, Group | None]:
    """The group of the processes that torchrun started, and the config with their number.

    After torchrun has started its processes again, a run that names its directory goes on from
    its latest checkpoint, or begins anew if there is none yet.

    Raises:
        ConfigError: ``num_learners`` is neither 1 nor their number, or there is a ``cluster``.
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
    valid = "None under torchrun, which has placed the learners"
    require(config.cluster is None or met.size == 1, "cluster", config.cluster, valid)
    config = dataclasses.replace(config, num_learners=met.size)
    if met.size == 1:
        return config, None
    store = met.store(config.learner_timeout_s)
    met = dataclasses.replace(met, store=lambda _: store)
    group = Ranks(met, config.learner_timeout_s, config.device)
    if group.rank == 0 and config.run_dir is not None:
        config = _begun(config, config.run_dir, store)
    names = ("resume", "overwrite", "init_from")
    known = group.broadcast({name: getattr(config, name) for name in names})
    return dataclasses.replace(config, **known), group


def _begun(config: Config, run_dir: str, store: dist.Store) -> Config:
    """How rank 0 goes on with a run that it, or an earlier start of it, has begun."""
    key = f"begun/{os.path.abspath(run_dir)}"
    if store.check([key]):
        return config.again(checkpoint.exists(Path(run_dir)))
    directories.prepare(
        Path(run_dir), config.resume, config.overwrite
    ).release()  # the Trainer locks
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

"""Connects learners that torchrun started, on one machine or several.

The store of torchrun's agent outlives the learners. A restarted learner must neither join dead
predecessors through it, nor fail because their run directory exists.
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
    """Return the group of the processes that torchrun started, and the config with their number.

    After torchrun has restarted its processes, a run with ``run_dir`` resumes from its latest
    checkpoint, or starts again if there is none yet.

    Raises:
        ConfigError: ``num_learners`` is neither 1 nor their number, or ``cluster`` is set.
        CheckpointError: the run directory exists, and wasn't created by this run.
        LearnerFailed: a learner never arrived.
    """
    rendezvous = torchrun_rendezvous()
    if rendezvous is None:
        return config, None
    if config.num_learners not in (1, rendezvous.size):
        raise ConfigError(
            f"num_learners={config.num_learners} must be the number of processes that torchrun "
            f"started (nearest: {rendezvous.size}), or be left out"
        )
    valid = "None under torchrun, which has placed the learners"
    require(config.cluster is None or rendezvous.size == 1, "cluster", config.cluster, valid)
    config = dataclasses.replace(config, num_learners=rendezvous.size)
    if rendezvous.size == 1:
        return config, None
    store = rendezvous.store(config.learner_timeout_s)
    rendezvous = dataclasses.replace(rendezvous, store=lambda _: store)
    group = Ranks(rendezvous, config.learner_timeout_s, config.device)
    if group.rank == 0 and config.run_dir is not None:
        config = _prepare_or_resume(config, config.run_dir, store)
    names = ("resume", "overwrite", "init_from")
    run_settings = group.broadcast({name: getattr(config, name) for name in names})
    return dataclasses.replace(config, **run_settings), group


def _prepare_or_resume(config: Config, run_dir: str, store: dist.Store) -> Config:
    """Prepare rank 0's run directory, or resume if an earlier start of this run created it."""
    key = f"begun/{os.path.abspath(run_dir)}"
    if store.check([key]):
        return config.again(checkpoint.exists(Path(run_dir)))
    directories.prepare(
        Path(run_dir), config.resume, config.overwrite
    ).release()  # the Trainer locks
    store.set(key, "")
    return dataclasses.replace(config, overwrite=False)


def torchrun_rendezvous() -> Rendezvous | None:
    """Return the rendezvous from torchrun's environment variables; None without them."""
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

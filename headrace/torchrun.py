"""Learners that torchrun started, on one machine or several."""

from __future__ import annotations

import dataclasses
import datetime
import os
from pathlib import Path

import torch.distributed as dist

from headrace.config import Config
from headrace.errors import ConfigError, LearnerFailed
from headrace.group import Place, Ranks
from headrace.types import Group


def join_torchrun(config: Config) -> tuple[Config, Group | None]:
    """The group of the processes that torchrun started, and the config with their number.

    After torchrun has started its processes again, a run that names its directory is resumed.

    Raises:
        ConfigError: ``num_learners`` is neither 1 nor their number.
        LearnerFailed: one of them never arrived.
    """
    place = torchrun_place()
    if place is None:
        return config, None
    if config.num_learners not in (1, place.size):
        raise ConfigError(
            f"num_learners={config.num_learners} must be the number of processes that torchrun "
            f"started (nearest: {place.size}), or be left out"
        )
    config = dataclasses.replace(config, num_learners=place.size)
    if place.size == 1:
        return config, None
    group = Ranks(place, config.learner_timeout_s, config.device)
    saved = config.run_dir is not None and (Path(config.run_dir) / "checkpoints/latest").exists()
    if group.tell(saved and _generation() > 0):
        config = dataclasses.replace(config, resume=True, overwrite=False)
    return config, group


def _generation() -> int:
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def torchrun_place() -> Place | None:
    """This process's place if torchrun (or what sets the same variables) started it."""
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
        return dist.PrefixStore(f"headrace/{_generation()}", tcp)

    return Place(rank, size, int(os.environ.get("LOCAL_RANK", rank)), store)

"""The one policy that an exploiter plays, of which its run keeps a copy.

What is exploited may be a run that goes on, whose checkpoints come and go. So the copy is what is
played from the first game on, by actors that are started again and by the run when it is resumed.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

from headrace.config import Config
from headrace.envs.names import env_name
from headrace.envs.probe import Probe
from headrace.envs.suites import the_same
from headrace.errors import CheckpointError, ConfigError
from headrace.league.folder import SNAPSHOTS, Snapshot
from headrace.records import checkpoint, folders, sums
from headrace.records.disk import json_text, told
from headrace.spaces.json import alike, space_from_json

_KIND = "rival"  # checkpoints/rival_0


def of(config: Config, run_dir: Path) -> Snapshot | None:
    """What an exploiter plays: its copy, once there is one; None: the run is no exploiter.

    Raises:
        CheckpointError: there is no such policy.
    """
    if config.exploit is None:
        return None
    kept = folders.saved(run_dir / "checkpoints", _KIND)
    return Snapshot(config.exploit, kept[-1] if kept else _named(config), "", 0)


def keep(config: Config, run_dir: Path) -> None:
    """Copy what an exploiter plays into its run directory, unless that was done.

    Raises:
        CheckpointError: it isn't whole, or the disk refuses.
    """
    there = run_dir / "checkpoints"
    if config.exploit is None or folders.saved(there, _KIND):
        return
    source = _named(config)
    if fault := sums.fault(source, *sums.POLICY_FILES):
        raise CheckpointError(
            f"exploit={config.exploit!r} can't be played, since {fault[0]} isn't whole: {fault[1]}"
        )
    with told(source, "read"):
        files = {name: (source / name).read_bytes() for name in sums.POLICY_FILES}
    folders.write(there, f"{_KIND}_0", {name: partial(_put, x) for name, x in files.items()})


def _put(content: bytes, file: Any) -> None:
    file.write(content)


def check(config: Config, found: Probe, run_dir: Path) -> None:
    """Raise ConfigError where what is to be exploited plays another game than this one."""
    if config.exploit is None:
        return
    kept = folders.saved(run_dir / "checkpoints", _KIND) if config.resume else []
    folder = kept[-1] if kept else _named(config)
    values = checkpoint.read_config(folder)
    checkpoint.check_one(folder, values)
    played, plays = values["config"], json.loads(json_text(config.to_json()))
    for name in ("env", "env_kwargs"):
        same = name == "env" and the_same(plays[name], [played[name]])
        if played[name] != plays[name] and not same:
            raise ConfigError(
                f"exploit={config.exploit!r} plays another game: its {name} is {played[name]!r}, "
                f"this run's is {plays[name]!r}"
            )
    for kind in ("observation_space", "action_space"):
        theirs, ours = space_from_json(values[kind]), getattr(found, kind)
        if not alike(theirs, ours, bounds=kind == "action_space"):
            raise ConfigError(
                f"exploit={config.exploit!r} plays another game: its {kind.replace('_', ' ')} "
                f"is {theirs}, that of {env_name(found.env)} is {ours}"
            )


def _named(config: Config) -> Path:
    """The checkpoint's folder that ``exploit`` names: of a league's snapshot, a run or itself."""
    path = Path(str(config.exploit))
    if config.league is not None and not path.exists():
        path = Path(config.league) / SNAPSHOTS / path
    return checkpoint.find(path)

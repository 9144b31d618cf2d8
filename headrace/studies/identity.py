"""Identity of a study's folder: settings that all of its processes must share, and a lock."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, ConfigError, HeadraceError, setting, shown
from headrace.processes import safe_files
from headrace.rundir.atomic_files import write_json
from headrace.rundir.config_file import from_json
from headrace.rundir.json_values import plain
from headrace.rundir.lock import Lock, LockHeld

_LOOK_S = 0.01  # polling interval of the lock
_OTHERS = {"config.json": "a run", "sweep.json": "a sweep", "population.json": "a population"}


@contextlib.contextmanager
def alone(folder: Path, timeout_s: float = 120.0) -> Iterator[None]:
    """Hold the exclusive lock of a folder against all other threads and processes.

    Raises:
        CheckpointError: other processes held the lock for the whole timeout (the message names the
            last one), or the file system has no locks.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            lock = Lock(folder, required=True)
            break
        except LockHeld as error:
            if time.monotonic() > until:
                raise CheckpointError(f"waited {timeout_s:.0f} s: {error}") from error
            time.sleep(_LOOK_S)
    try:
        lock.sign()
        yield
    finally:
        lock.release()


def check_same(file: Path, what: str, identity: dict[str, Any]) -> None:
    """Write the settings into a new folder, or compare them with those of an existing one.

    Args:
        what: description of the folder's content, with its article.
        identity: settled ``config`` of a run, and the sampled ``parameters``.

    Raises:
        ConfigError: a setting differs (the message names it), the file isn't one of headrace's, or
            the folder contains something else.
    """
    for name, other in _OTHERS.items():
        if name != file.name and os.path.lexists(file.with_name(name)):
            raise ConfigError(f"{file.parent} holds {other}, not {what}: {_elsewhere()}")
    ours = plain(identity)
    if not os.path.lexists(file):
        write_json(file, ours)
        return
    try:
        theirs = _flat(_settled(safe_files.read_json(file)))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read ({error}): {_elsewhere()}") from error
    requested = _flat(json.loads(json.dumps(ours)))
    for name in [*requested, *theirs]:
        there, here = theirs.get(name), requested.get(name)
        if there != here:
            raise ConfigError(
                f"{file.parent} holds {what} with {name}={shown(there)}, not {shown(here)}: give "
                f"the same settings, or {_elsewhere()}"
            )


def _elsewhere() -> str:
    return f"choose another folder with {setting('output', repr('FOLDER'))}"


def _settled(values: Any) -> Any:
    """Return stored settings without automatic sizes; unreadable ones unchanged."""
    try:
        config = from_json(values["config"]).settled.to_json()
    except (HeadraceError, KeyError, TypeError):  # compared unchanged
        return values
    return json.loads(json.dumps({**values, "config": plain(config)}))


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    """Flatten settings by name: the algorithm as ``algo``, sampled ones as ``sample.NAME``."""
    if not isinstance(values, dict):
        return {path: values}
    flat: dict[str, Any] = {}
    for name, value in values.items():
        inside = "" if path in ("", "config", "algo", "network") else f"{path}."
        renamed = {"parameters": "sample", "name": "algo" if path == "algo" else "name"}
        flat |= _flat(value, f"{inside}{renamed.get(name, name)}")
    return flat

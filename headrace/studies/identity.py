"""Identity of a study's folder: settings that all of its processes must share, and a lock."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headrace.errors import CheckpointError, ConfigError, HeadraceError, setting, shown
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
        CheckpointError: others were inside for so long, the last of whom is named; or the file
            system has no locks.
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
        what: the folder holds, with its article.
        identity: a run's ``config``, settled, and ``parameters`` that are drawn among it.

    Raises:
        ConfigError: they are others; names one that differs. Or the file is none of headrace's, or
            the folder holds something else.
    """
    for name, other in _OTHERS.items():
        if name != file.name and file.with_name(name).exists():
            raise ConfigError(f"{file.parent} holds {other}, not {what}: {_elsewhere()}")
    ours = plain(identity)
    if not file.exists():
        write_json(file, ours)
        return
    try:
        theirs = _flat(_settled(json.loads(file.read_text(encoding="utf-8"))))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{file} can't be read ({error}): {_elsewhere()}") from error
    own = _flat(json.loads(json.dumps(ours)))
    for name in [*own, *theirs]:
        there, here = theirs.get(name), own.get(name)
        if there != here:
            raise ConfigError(
                f"{file.parent} holds {what} with {name}={shown(there)}, not {shown(here)}: give "
                f"the same settings, or {_elsewhere()}"
            )


def _elsewhere() -> str:
    return f"choose another folder with {setting('output', repr('FOLDER'))}"


def _settled(values: Any) -> Any:
    """Return settings as stored, including those of older versions, with automatic sizes left
    out.
    """
    try:
        config = from_json(values["config"]).settled.to_json()
    except (HeadraceError, KeyError, TypeError):  # they are compared as they are
        return values
    return json.loads(json.dumps({**values, "config": plain(config)}))


def _flat(values: Any, path: str = "") -> dict[str, Any]:
    """Flatten settings by name: the algorithm as ``algo``, sampled ones as ``sample.NAME``."""
    if not isinstance(values, dict):
        return {path: values}
    found: dict[str, Any] = {}
    for name, value in values.items():
        inside = "" if path in ("", "config", "algo", "network") else f"{path}."
        known = {"parameters": "sample", "name": "algo" if path == "algo" else "name"}
        found |= _flat(value, f"{inside}{known.get(name, name)}")
    return found

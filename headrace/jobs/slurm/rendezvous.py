"""How a driver elsewhere and a job's Ray cluster hear of each other: files in a folder of theirs.

Only its user can read the folder. The job writes where its cluster is, the driver a pulse, without
which the job ends: SLURM itself would keep it after the driver's death.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from headrace.ray.node import Ray

_BEAT_S = 5.0
_PATIENCE_S = 120.0  # without a pulse: NFS shows a change after a minute at the latest


@contextlib.contextmanager
def offered(folder: Path, ray: Ray) -> Iterator[None]:
    """The folder tells of the cluster inside the block, from the first moment whole."""
    path, hidden = folder / "cluster.json", folder / "cluster.tmp"
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(ray), file)
        hidden.replace(path)
        yield
    finally:
        path.unlink(missing_ok=True)


def found(folder: Path) -> Ray | None:
    """The cluster, once it is up."""
    try:
        return Ray(**json.loads((folder / "cluster.json").read_text(encoding="utf-8")))
    except OSError:  # it isn't there, or can't be read for a moment
        return None


class Heartbeat:
    """The driver's: beats until it is stopped, or its process ends."""

    def __init__(self, folder: Path) -> None:
        self._path, self._stopped = folder / "pulse", threading.Event()
        threading.Thread(target=self._beat, name="headrace-pulse", daemon=True).start()

    def _beat(self) -> None:
        count = 0
        while not self._stopped.is_set():
            count += 1
            with contextlib.suppress(OSError):  # of a file system that may be back at the next beat
                self._path.write_text(str(count), encoding="utf-8")
            self._stopped.wait(_BEAT_S)

    def stop(self) -> None:
        self._stopped.set()


class HeartbeatListener:
    """The job's ear for that pulse."""

    def __init__(self, folder: Path, patience_s: float = _PATIENCE_S) -> None:
        self._path, self._patience_s = folder / "pulse", patience_s
        self._last, self._changed = "", time.monotonic()

    def hears(self) -> bool:
        """Whether it has changed of late; the clocks of two machines aren't compared."""
        text = ""
        with contextlib.suppress(OSError):
            text = self._path.read_text(encoding="utf-8")
        now = time.monotonic()
        if text and text != self._last:
            self._last, self._changed = text, now
        return now - self._changed < self._patience_s

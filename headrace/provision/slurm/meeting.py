"""How a driver elsewhere hears of a job's Ray cluster: a file that only its user can read."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path

from headrace.provision.ray_node import Ray


@contextlib.contextmanager
def offered(path: Path, ray: Ray) -> Iterator[None]:
    """The file holds address and token inside the block, from the first moment whole."""
    hidden = path.with_suffix(".tmp")
    descriptor = os.open(hidden, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(dataclasses.asdict(ray), file)
        hidden.replace(path)
        yield
    finally:
        hidden.unlink(missing_ok=True)
        path.unlink(missing_ok=True)


def found(path: Path) -> Ray | None:
    """The cluster, once it is up."""
    try:
        return Ray(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
